"""One neighbour's relay as the receiving end sees it: ranges of files, and the manifest, waited for within bounds."""

from __future__ import annotations

import http.client
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils import relay
from ansible_collections.sparkmesh.cluster.plugins.module_utils.relay import StoreError

BLOCK = 1 << 20
BACKOFF = (0.2, 5.0)
"""First and longest pause in seconds before a neighbour is asked again."""
_SOCKET_TIMEOUT = 30.0


class NotYet(Exception):
    """The neighbour does not have it yet, or does not answer yet."""


class Upstream:
    """One connection to one relay address; reopened after any error."""

    def __init__(self, url: str, token: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise StoreError(f"upstream {url!r}: wanted http://<fabric address>:<port>")
        self._where = (relay.listen_address(parts.hostname), parts.port or relay.DEFAULT_PORT)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._connection: http.client.HTTPConnection | None = None
        self.url = url

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, span: tuple[int, int] | None, sink: Callable[[memoryview], object]) -> None:
        """Send the body (or bytes [first, end) of it) to `sink` block by block; raise NotYet or StoreError."""
        headers = dict(self._headers)
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(*self._where, timeout=_SOCKET_TIMEOUT)
            self._connection.request("GET", urllib.parse.quote(path), headers=headers)
            answer = self._connection.getresponse()
            if answer.status == 404 and answer.headers.get("X-Sparkmesh") == "not-yet":
                answer.read()
                raise NotYet(f"{self.url} does not have it yet")
            if answer.status != (200 if span is None else 206):
                text = answer.read(300).decode(errors="replace").strip()
                self.close()
                if answer.status >= 500:
                    raise NotYet(f"{self.url} answered {answer.status}")
                fix = "; both ends need the token of the same run" if answer.status == 401 else ""
                raise StoreError(f"{self.url}{path}: answered {answer.status} ({text}){fix}")
            buffer, left = memoryview(bytearray(BLOCK)), None if span is None else span[1] - span[0]
            while left is None or left > 0:
                count = answer.readinto(buffer if left is None else buffer[: min(left, BLOCK)])
                if not count:
                    break
                sink(buffer[:count])
                left = None if left is None else left - count
            if left:
                raise ConnectionError(f"{left} bytes short")
            answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NotYet(f"{self.url}: {error!r}") from error


def fetch_manifest(
    name: str, revision: str, upstreams: list[str], *, token: str, wanted: str, stall: float
) -> dict[str, Any]:
    """The neighbour's manifest, waited for at most `stall` seconds; its digest must be `wanted`."""
    deadline, delay, turn = time.monotonic() + stall, BACKOFF[0], 0
    while True:
        link, raw = Upstream(upstreams[turn % len(upstreams)], token), bytearray()
        try:
            link.get(f"/manifest/{name}/{revision}", None, raw.extend)
            break
        except NotYet as why:
            if time.monotonic() + delay > deadline:
                raise StoreError(
                    f"no manifest of {name}@{revision} within {stall:.0f} s: {why}; see whether the "
                    "neighbour has the model and its relay runs"
                ) from why
            time.sleep(delay)
            delay, turn = min(delay * 1.5, BACKOFF[1]), turn + 1
        finally:
            link.close()
    doc = relay.parse_manifest(bytes(raw), link.url)
    for key, value in (("manifest", wanted), ("name", name), ("revision", revision)):
        if doc.get(key) != value:
            raise StoreError(
                f"manifest from {link.url}: {key}: seen {doc.get(key)!r}, wanted {value!r}; the neighbour "
                "holds another model than the head"
            )
    return doc
