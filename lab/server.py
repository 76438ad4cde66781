"""The one server the nodes can reach: model hub, read-only image registry and wheels, over HTTP."""

import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit
from urllib.request import ProxyHandler, build_opener

from lab import config
from lab.baseimage import MANIFEST_TYPE
from lab.hub import Hub, NotThere
from lab.shell import LabError

_CHUNK = 1 << 20
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte of a single-range ``Range`` header; None when the whole file is asked for.

    Raises ValueError when the range starts behind the end of the file.
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if not match or match[0] == "bytes=-":
        return None
    if not match[1]:
        first, last = max(0, size - int(match[2])), size - 1
    else:
        first, last = int(match[1]), min(int(match[2] or size), size - 1)
    if first >= size or first > last:
        raise ValueError(f"{header} of {size} bytes")
    return first, last


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the three parts."""

    protocol_version = "HTTP/1.1"
    server_version = "sparkmesh-lab"
    hub: ClassVar[Hub]
    base: ClassVar[Path]
    wheels: ClassVar[Path]

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_GET

    def _answer(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        parts = [unquote(part) for part in url.path.split("/") if part]
        try:
            if any(part == ".." or "/" in part for part in parts):
                raise NotThere("EntryNotFound", "no such path")
            self._part(parts)(parts, query)
        except NotThere as error:
            self._json({"error": str(error)}, HTTPStatus.NOT_FOUND, {"X-Error-Code": error.code})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _part(self, parts: list[str]) -> Callable[[list[str], dict[str, str]], None]:
        match parts:
            case ["v2", *_]:
                return self._registry
            case ["wheels", *_]:
                return self._wheels
            case ["api", "models", _, _, *_]:
                return self._model
            case [_, _, "resolve", _, _, *_]:
                return self._resolve
            case ["health"]:
                return lambda _parts, _query: self._json({"pid": os.getpid()})
        raise NotThere("EntryNotFound", "the lab server has /api/models, /<repo>/resolve, /v2 and /wheels")

    def _model(self, parts: list[str], query: dict[str, str]) -> None:
        repo, rest = "/".join(parts[2:4]), parts[4:]
        blobs = query.get("blobs", "").lower() in ("1", "true")
        match rest:
            case []:
                self._json(self.hub.info(repo, "main", blobs))
            case ["revision", revision]:
                self._json(self.hub.info(repo, revision, blobs))
            case ["tree", revision, *folder]:
                recursive = query.get("recursive", "").lower() in ("1", "true")
                self._json(self.hub.tree(repo, revision, "/".join(folder), recursive))
            case _:
                raise NotThere("EntryNotFound", f"no such question about {repo}")

    def _resolve(self, parts: list[str], query: dict[str, str]) -> None:
        commit, entry = self.hub.file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        headers = {"X-Repo-Commit": commit, "ETag": f'"{entry.etag}"'}
        if entry.large:
            headers |= {"X-Linked-Etag": f'"{entry.sha256}"', "X-Linked-Size": str(entry.size)}
        self._file(entry.path, "application/octet-stream", headers)

    def _registry(self, parts: list[str], query: dict[str, str]) -> None:
        version = {"Docker-Distribution-Api-Version": "registry/2.0"}
        name = config.BASE_NAME.split("/")
        if parts == ["v2"]:
            return self._json({}, headers=version)
        if parts[1:-2] != name:
            return self._registry_error("NAME_UNKNOWN", f"the lab's registry has only {config.BASE_NAME}")
        if parts[-2:] == ["tags", "list"]:
            return self._json({"name": config.BASE_NAME, "tags": [config.BASE_TAG]}, headers=version)
        kind, wanted = parts[-2:]
        manifest = json.loads((self.base / "index.json").read_text())["manifests"][0]["digest"]
        digest = manifest if kind == "manifests" and wanted == config.BASE_TAG else wanted
        blob = self.base / "blobs" / digest.replace(":", "/")
        if not _DIGEST.match(digest) or not blob.is_file() or (kind == "manifests") != (digest == manifest):
            return self._registry_error("MANIFEST_UNKNOWN" if kind == "manifests" else "BLOB_UNKNOWN", wanted)
        media_type = MANIFEST_TYPE if kind == "manifests" else "application/octet-stream"
        return self._file(blob, media_type, {**version, "Docker-Content-Digest": digest, "ETag": f'"{digest}"'})

    def _registry_error(self, code: str, text: str) -> None:
        self._json({"errors": [{"code": code, "message": text}]}, HTTPStatus.NOT_FOUND)

    def _wheels(self, parts: list[str], query: dict[str, str]) -> None:
        if len(parts) == 1:
            names = sorted(path.name for path in self.wheels.glob("*.whl"))
            rows = "".join(f'<a href="/wheels/{quote(name)}">{html.escape(name)}</a><br>\n' for name in names)
            return self._send(f"<!DOCTYPE html><title>wheels</title>\n{rows}".encode(), "text/html; charset=utf-8")
        path = self.wheels / parts[-1]
        if len(parts) != 2 or path.suffix != ".whl" or not path.is_file():
            raise NotThere("EntryNotFound", f"no wheel {'/'.join(parts[1:])}")
        return self._file(path, "application/zip", {})

    def _json(self, content: Any, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(content).encode(), "application/json", status, headers)

    def _head(self, status: HTTPStatus, media_type: str, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": media_type, "Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(
        self,
        body: bytes,
        media_type: str,
        status: HTTPStatus = HTTPStatus.OK,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._head(status, media_type, len(body), headers or {})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _file(self, path: Path, media_type: str, headers: dict[str, str]) -> None:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            headers = {"Accept-Ranges": "bytes", **headers}
            try:
                part = parse_range(self.headers.get("Range"), size)
            except ValueError:
                whole = {"Content-Range": f"bytes */{size}"}
                return self._send(b"", media_type, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, whole)
            first, last = part or (0, size - 1)
            if part:
                headers["Content-Range"] = f"bytes {first}-{last}/{size}"
            self._head(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK, media_type, last - first + 1, headers)
            if self.command == "HEAD":
                return None
            stream.seek(first)
            left = last - first + 1
            while left and (chunk := stream.read(min(_CHUNK, left))):
                self.wfile.write(chunk)
                left -= len(chunk)
        return None


def serve(address: str, port: int, hub: Path, base: Path, wheels: Path) -> ThreadingHTTPServer:
    """A server bound to ``address:port``, not yet running."""
    parts = {"hub": Hub(hub), "base": base, "wheels": wheels}
    server = ThreadingHTTPServer((address, port), type("LabHandler", (Handler,), parts))
    server.daemon_threads = True
    return server


def hub_dir() -> Path:
    """Where the models to serve lie, as ``<organisation>/<name>/``."""
    return config.state_dir() / "hub"


def wheels_dir() -> Path:
    """Where the wheels to serve lie."""
    return config.cache_dir() / "wheels"


def _pid_file() -> Path:
    return config.state_dir() / "server.pid"


def running() -> int | None:
    """Process id of the lab's own server; None when it does not run."""
    try:
        pid = int(_pid_file().read_text())
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, ValueError):
        return None
    return pid if "lab" in arguments and "server" in arguments else None


def ensure(base: Path) -> str:
    """Start the server detached unless it runs from this clone's present code; return what was done."""
    for folder in (hub_dir(), wheels_dir()):
        folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "lab", "server", "--base", str(base)]
    pid = running()
    if pid is not None:
        seen = Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
        older = all(path.stat().st_mtime < _pid_file().stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
        if seen[1:] == command[1:] and Path(f"/proc/{pid}/cwd").resolve() == config.REPO and older:
            return "running"
        stop()
    log = config.state_dir() / "log" / "server.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        process = subprocess.Popen(
            command, cwd=config.REPO, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    _pid_file().write_text(str(process.pid))
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if _answers(process.pid):
            return "started" if pid is None else "started again"
        time.sleep(0.1)
    stop()
    tail = "\n    ".join(log.read_text(errors="replace").splitlines()[-4:])
    raise LabError(f"the lab server does not answer on {config.SERVER_URL}:\n    {tail}", f"read {log}")


def _answers(pid: int) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(f"{config.SERVER_URL}/health", timeout=2) as answer:
            return bool(json.load(answer)["pid"] == pid)
    except (OSError, ValueError, KeyError):
        return False


def stop() -> bool:
    """End the lab's server exactly; return whether there was one."""
    pid = running()
    if pid is not None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + 5
            while running() == pid and time.monotonic() < deadline:
                time.sleep(0.05)
    _pid_file().unlink(missing_ok=True)
    return pid is not None
