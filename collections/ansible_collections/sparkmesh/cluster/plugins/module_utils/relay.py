"""The relay server of a model store, and the store's on-disk format that it reads.

The `model_store` module installs this one file on a node and runs it alone, so it imports nothing but the standard
library; everything else that touches a store imports the format from here.

A store is `<root>/<name>/<revision>/`; while it is being received it is `<root>/<name>/.partial-<revision>/`.
Beside the model's files both hold `.sparkmesh/`:

* `manifest.json`: name, revision, repo, files {path: {size (bytes), sha256 (hex)}}, manifest ("sha256:..." over the
  canonical JSON of files), created (UTC);
* `verified.json`: {path: {size, mtime_ns, inode, sha256}}, one entry per file whose whole content was hashed while
  the file had exactly that size, time and inode.

A file is served only when its entry in `verified.json` still fits the file and the manifest. A node that is itself
still receiving therefore passes on what it has, and never a byte it has not proved.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import http.server
import ipaddress
import json
import os
import re
import signal
import socket
import stat
import sys
import threading
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

META = ".sparkmesh"
DEFAULT_PORT = 5001
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class StoreError(Exception):
    """A store, a manifest or an argument is not usable; the text names it and the fix."""


def valid_name(value: str, what: str) -> str:
    """Return `value` if it is one safe path component for a model name or a revision, else raise StoreError."""
    if not _NAME.fullmatch(value):
        raise StoreError(
            f"{what} {value!r} is not usable as a folder name; use letters, digits, '.', '_' and '-', "
            "first a letter or digit, at most 128 characters"
        )
    return value


def valid_path(path: str) -> str:
    """Return `path` if it is a plain relative path inside a store and outside its metadata, else raise StoreError."""
    parts = path.split("/")
    if parts[0] == META or any(part in ("", ".", "..") for part in parts) or re.search(r"[\x00-\x1f\\]", path):
        raise StoreError(
            f"path {path!r} is refused: it must be relative, without '.', '..', backslashes or control "
            f"characters, and outside {META}/"
        )
    return path


def manifest_digest(files: Mapping[str, Mapping[str, Any]]) -> str:
    """Digest of a files map: sha256 of its canonical JSON (sorted keys, no spaces, UTF-8), size and sha256 only."""
    plain = {path: {"sha256": entry["sha256"], "size": entry["size"]} for path, entry in files.items()}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def parse_manifest(text: str | bytes, where: str) -> dict[str, Any]:
    """Parse and prove a manifest: safe paths, whole entries, and a digest that is really over its files."""
    try:
        doc = json.loads(text)
        files = doc["files"]
        for path, entry in files.items():
            valid_path(path)
            if not isinstance(entry["size"], int) or entry["size"] < 0 or not _SHA256.fullmatch(entry["sha256"]):
                raise StoreError(f"manifest {where}: {path}: seen {entry!r}, wanted a size in bytes and a hex sha256")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"manifest {where} cannot be read: {error!r}; fetch the model again") from error
    seen = manifest_digest(files)
    if doc.get("manifest") != seen:
        raise StoreError(
            f"manifest {where} says it is {doc.get('manifest')!r} but its files give {seen}; "
            "it was edited or damaged, fetch the model again"
        )
    return dict(doc)


def final_dir(root: str, name: str, revision: str) -> Path:
    """Folder of a complete store."""
    return Path(root, valid_name(name, "model name"), valid_name(revision, "revision"))


def partial_dir(root: str, name: str, revision: str) -> Path:
    """Folder of a store that is being received."""
    return Path(root, valid_name(name, "model name"), ".partial-" + valid_name(revision, "revision"))


def stat_entry(info: os.stat_result, sha256: str) -> dict[str, Any]:
    """One `verified.json` entry for a file whose whole content hashed to `sha256`."""
    return {"size": info.st_size, "mtime_ns": info.st_mtime_ns, "inode": info.st_ino, "sha256": sha256}


def still_verified(entry: object, info: os.stat_result, wanted: Mapping[str, Any]) -> bool:
    """True if `entry` was recorded for the file as it is now and with the content the manifest wants."""
    return stat.S_ISREG(info.st_mode) and info.st_size == wanted["size"] and entry == stat_entry(info, wanted["sha256"])


def open_inside(folder: Path, path: str) -> BinaryIO:
    """Open a store's file for reading; a symbolic link anywhere below `folder` is refused (OSError)."""
    *above, name = path.split("/")
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in above:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
            os.close(at)
            at = below
        return os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=at), "rb")
    finally:
        os.close(at)


class Cached:
    """JSON files re-read only when they were replaced (both metadata files are written by atomic rename)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Path, tuple[tuple[int, int, int], dict[str, Any]]] = {}

    def get(self, path: Path, manifest: bool = False) -> dict[str, Any]:
        with path.open("rb") as stream:
            info = os.fstat(stream.fileno())
            key = (info.st_ino, info.st_mtime_ns, info.st_size)
            with self._lock:
                if (hit := self._seen.get(path)) and hit[0] == key:
                    return hit[1]
            raw = stream.read()
        doc: dict[str, Any] = parse_manifest(raw, str(path)) if manifest else json.loads(raw)
        with self._lock:
            self._seen[path] = (key, doc)
        return doc


class Relay:
    """What every listener shares: the store root, the token, the caches and the time of the last good request."""

    def __init__(self, root: str, token: str) -> None:
        self.root = root
        self.cache = Cached()
        self._token = token.encode()
        self._lock = threading.Lock()
        self._active = 0
        self._last = time.monotonic()

    def allowed(self, header: str) -> bool:
        scheme, _, seen = header.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(seen.strip().encode(), self._token)

    def __enter__(self) -> None:
        with self._lock:
            self._active += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._active -= 1
            self._last = time.monotonic()

    def idle_seconds(self) -> float:
        """Seconds since the last authorised request ended; 0 while one is running."""
        with self._lock:
            return 0.0 if self._active else time.monotonic() - self._last

    def manifest(self, name: str, revision: str) -> tuple[Path, dict[str, Any]] | None:
        """(folder, manifest) of the complete store, else of the one being received, else None."""
        for folder in (final_dir(self.root, name, revision), partial_dir(self.root, name, revision)):
            try:
                return folder, self.cache.get(folder / META / "manifest.json", manifest=True)
            except FileNotFoundError:
                continue
        return None

    def verified_file(self, folder: Path, manifest: Mapping[str, Any], path: str) -> BinaryIO | None:
        """The open file if it is proved as it is now, else None."""
        try:
            entry = self.cache.get(folder / META / "verified.json").get(path)
            stream = open_inside(folder, path)
        except OSError:
            return None
        if still_verified(entry, os.fstat(stream.fileno()), manifest["files"][path]):
            return stream
        stream.close()
        return None


class Handler(http.server.BaseHTTPRequestHandler):
    """GET and HEAD of /manifest/<name>/<revision> and /file/<name>/<revision>/<path>."""

    relay: Relay
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server_version = "sparkmesh-relay"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        if not self.relay.allowed(self.headers.get("Authorization", "")):
            self._say(401, "wrong token", {"WWW-Authenticate": "Bearer"})
            return
        with self.relay:
            try:
                self._route([urllib.parse.unquote(part) for part in self.path.partition("?")[0].split("/")[1:]])
            except StoreError as error:
                self._say(400, str(error))

    do_HEAD = do_GET

    def _route(self, parts: list[str]) -> None:
        if len(parts) < 3 or parts[0] not in ("manifest", "file"):
            self._say(404, "unknown request", {"X-Sparkmesh": "unknown"})
            return
        found = self.relay.manifest(parts[1], parts[2])
        path = valid_path("/".join(parts[3:])) if parts[0] == "file" else ""
        if found is None:
            self._not_yet()
        elif parts[0] == "manifest":
            self._say(200, json.dumps(found[1]), {"Content-Type": "application/json"})
        elif path not in found[1]["files"]:
            self._say(404, f"{path} is not in the manifest", {"X-Sparkmesh": "unknown"})
        elif (stream := self.relay.verified_file(*found, path)) is None:
            self._not_yet()
        else:
            with stream:
                self._send(stream, found[1]["files"][path])

    def _send(self, stream: BinaryIO, entry: Mapping[str, Any]) -> None:
        size, first, code = entry["size"], 0, 200
        last = size - 1
        if (header := self.headers.get("Range")) is not None:
            wanted = _RANGE.fullmatch(header.strip())
            first = int(wanted[1]) if wanted else size
            last = min(last, int(wanted[2])) if wanted and wanted[2] else last
            code = 206
            if first > last:
                self._say(416, f"range {header!r} lies outside {size} bytes", {"Content-Range": f"bytes */{size}"})
                return
        self.send_response(code)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("ETag", f'"{entry["sha256"]}"')
        if code == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if self.command == "GET" and last >= first:
            self.connection.sendfile(stream, first, last - first + 1)

    def _not_yet(self) -> None:
        self._say(404, "not yet", {"X-Sparkmesh": "not-yet", "Retry-After": "1"})

    def _say(self, code: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Refusals only: a line per range would bury them in the journal."""
        if args and str(args[1] if len(args) > 1 else "") in ("400", "401", "416", "500"):
            print(f"{self.address_string()}: {format % args}", file=sys.stderr, flush=True)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """As the parent's, without its look-up of the address's name: fabric addresses have none to wait for."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A receiver that hangs up in the middle of a range is normal: it asks again."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def listen_address(address: str) -> str:
    """Return `address` if it is one exact IPv4 address of a node, else raise StoreError."""
    try:
        seen = ipaddress.IPv4Address(address)
    except ValueError as error:
        raise StoreError(f"relay address {address!r}: {error}; give IPv4 addresses of the node's links") from error
    if seen.is_unspecified or seen.is_multicast or seen == ipaddress.IPv4Address("255.255.255.255"):
        raise StoreError(
            f"relay address {address}: wanted single fabric addresses, never all or many; give the "
            "addresses of this node's links"
        )
    return str(seen)


def start(relay: Relay, addresses: list[str], port: int) -> list[http.server.ThreadingHTTPServer]:
    """Listen on every address (port 0: any free one) and serve in daemon threads; StoreError if one is not free."""
    handler = type("BoundHandler", (Handler,), {"relay": relay})
    servers: list[http.server.ThreadingHTTPServer] = []
    for address in addresses:
        try:
            servers.append(_Server((listen_address(address), port), handler))
        except OSError as error:
            raise StoreError(
                f"relay cannot listen on {address}:{port}: {error}; the address must be up on this node "
                "and the port free"
            ) from error
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return servers


def read_token(path: str) -> str:
    """Read a token file, which only its owner may read; raise StoreError otherwise."""
    with Path(path).open(encoding="utf-8") as stream:
        mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        if mode & 0o077:
            raise StoreError(f"token file {path} has mode {mode:04o}, wanted 0600: others could read the relay's token")
        token = stream.read().strip()
    if len(token) < 16:
        raise StoreError(f"token file {path} holds {len(token)} characters, wanted at least 16")
    return token


def main(argv: list[str] | None = None) -> int:
    """Serve until idle for `--idle` seconds or until SIGTERM."""
    parser = argparse.ArgumentParser(description="serve verified model files on fabric addresses")
    parser.add_argument("--root", required=True)
    parser.add_argument("--listen", action="append", required=True, metavar="ADDRESS")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--token-file", required=True)
    parser.add_argument("--idle", type=float, default=1800.0, help="seconds without a request before it stops")
    args = parser.parse_args(argv)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        relay = Relay(args.root, read_token(args.token_file))
        start(relay, args.listen, args.port)
    except (StoreError, OSError) as error:
        print(f"sparkmesh-relay: {error}", file=sys.stderr)
        return 1
    while not stop.wait(min(1.0, args.idle / 4)):
        if relay.idle_seconds() > args.idle:
            print(f"no request for {args.idle:.0f} s: stopping", file=sys.stderr)
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
