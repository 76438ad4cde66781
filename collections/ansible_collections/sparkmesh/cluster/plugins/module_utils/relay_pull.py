"""The receiving end of the relay: pull a model from a neighbour in parallel ranges, prove it, put it in place.

Ranges are hashed in file order as soon as they lie side by side, from the page cache, so a file is proved about when
its last byte arrives. A receiver that is killed finds its finished ranges in `.sparkmesh/ranges.jsonl`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils import model_store, relay
from ansible_collections.sparkmesh.cluster.plugins.module_utils.progress import write_json
from ansible_collections.sparkmesh.cluster.plugins.module_utils.relay import StoreError
from ansible_collections.sparkmesh.cluster.plugins.module_utils.relay_link import (
    BACKOFF,
    BLOCK,
    NotYet,
    Upstream,
    fetch_manifest,
)

FETCHES = 3
"""Times a whole file is fetched before a content that never fits is given up: once, and twice again."""
FILES = 4
"""Files received at once: enough that hashing one does not hold the link, few enough that files end early."""


@dataclass
class Pulled:
    """What a pull did: bytes received from the neighbour, bytes found on disk, seconds, files fetched again."""

    received: int = 0
    resumed: int = 0
    seconds: float = 0.0
    refetched: list[str] = field(default_factory=list)
    changed: bool = False
    manifest: str = ""


class Journal:
    """`ranges.jsonl`: what of which file already lies on disk, for one manifest; a torn last line is ignored."""

    def __init__(self, folder: Path, manifest: str) -> None:
        path = folder / relay.META / "ranges.jsonl"
        self.known: dict[str, list[tuple[int, int]]] = {}
        self._lock = threading.Lock()
        self._path = path
        lines = self._read(path)
        if not lines or lines[0] != {"manifest": manifest}:
            lines = [{"manifest": manifest}]
        for line in lines[1:]:
            spans = self.known.setdefault(line["path"], [])
            if line.get("again"):
                spans.clear()
            elif "end" in line:
                spans.append((line["start"], line["end"]))
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        self._stream = path.open("a", encoding="utf-8", buffering=1)

    @staticmethod
    def _read(path: Path) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        with contextlib.suppress(OSError, ValueError), path.open(encoding="utf-8") as stream:
            for line in stream:
                lines.append(json.loads(line))
        return lines

    def write(self, path: str, **what: Any) -> None:
        with self._lock:
            self._stream.write(json.dumps({"path": path, **what}) + "\n")

    def finish(self, remove: bool) -> None:
        self._stream.close()
        if remove:
            self._path.unlink()


class Incoming:
    """One file being received: its open handle, the ranges still to fetch, and the hash of its finished front."""

    def __init__(
        self, folder: Path, path: str, entry: Mapping[str, Any], *, known: list[tuple[int, int]], span: int
    ) -> None:
        self.path, self.size, self.sha256 = path, int(entry["size"]), str(entry["sha256"])
        self.full = folder / path
        self.fetches, self.not_before, self.delay = 1, 0.0, BACKOFF[0]
        self._span, self._lock, self._hashing = span, threading.Lock(), False
        self.full.parent.mkdir(parents=True, exist_ok=True)
        self.handle = os.open(self.full, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        if os.fstat(self.handle).st_size != self.size:
            known = []
            os.ftruncate(self.handle, 0)
            if self.size:
                os.posix_fallocate(self.handle, 0, self.size)
        self._restart(known)

    def _restart(self, known: list[tuple[int, int]]) -> None:
        self._done: dict[int, int] = {}
        self._front, self._hash = 0, hashlib.sha256()
        self.todo: list[tuple[int, int]] = []
        at = 0
        for start, end in [*sorted(known), (self.size, self.size)]:
            while at < start:
                self.todo.append((at, min(start, at + self._span)))
                at = self.todo[-1][1]
            if end > at:
                self._done[at] = end
                at = end

    def again(self) -> None:
        """Forget everything received: the content did not hash to what the manifest wants."""
        self.fetches += 1
        self._restart([])

    def landed(self, *spans: tuple[int, int]) -> bool:
        """Note finished ranges and hash the front as far as it is whole; True for the one call that ends the file.

        One thread hashes at a time; the others only leave a note and go on receiving.
        """
        with self._lock:
            self._done.update(spans)
            if self._hashing:
                return False
            self._hashing = True
        while True:
            with self._lock:
                until = self._done.get(self._front)
                if until is None:
                    self._hashing = False
                    return self._front == self.size
            while self._front < until:
                block = os.pread(self.handle, min(4 * BLOCK, until - self._front), self._front)
                if not block:
                    raise StoreError(f"{self.full} shrank while it was received; stop whatever writes there")
                self._hash.update(block)
                self._front += len(block)

    def seen(self) -> str:
        """The hex sha256 of what was received; of the whole file once `landed` was True."""
        return self._hash.hexdigest()


class Pull:
    """The work of one pull, shared by its threads."""

    def __init__(
        self,
        folder: Path,
        manifest: Mapping[str, Any],
        upstreams: list[str],
        token: str,
        *,
        span: int,
        stall: float,
        say: model_store.Say,
    ) -> None:
        self.result = Pulled(manifest=manifest["manifest"], changed=True)
        self._folder, self._files = folder, manifest["files"]
        self._base = f"/file/{manifest['name']}/{manifest['revision']}/"
        self._upstreams, self._token, self._span, self._stall, self._say = upstreams, token, span, stall, say
        self._total = sum(entry["size"] for entry in self._files.values())
        self._verified = model_store.Verified(folder)
        self._journal = Journal(folder, manifest["manifest"])
        self._turn = threading.Condition()
        self._queue: list[Incoming] = []
        self._picked = self._open = 0
        self._last = time.monotonic()
        self._waiting: dict[str, str] = {}
        self._failed: list[str] = []
        self._stop = False

    def run(self, threads: int) -> None:
        """Receive and prove every file of the manifest, or raise StoreError naming what could not be had."""
        self._survey()
        self._last = time.monotonic()
        crew = [threading.Thread(target=self._worker, args=(number,), daemon=True) for number in range(threads)]
        for each in crew:
            each.start()
        for each in crew:
            while each.is_alive():
                each.join(0.5)
                self._tell()
        self._journal.finish(remove=not self._failed)
        if self._failed:
            raise StoreError("; ".join(self._failed))

    def _survey(self) -> None:
        """Take what is already proved, hash whole files that some other client left, queue the rest, largest first:
        the last file of a chain is waited for once per hop, so it should be small."""
        for path, entry in sorted(self._files.items(), key=lambda item: (-item[1]["size"], item[0])):
            full = self._folder / path
            if os.path.lexists(full):
                info = full.lstat()
                known = self._verified.holds(path, info, entry)
                if not known and path not in self._journal.known and info.st_size == entry["size"]:
                    sha256, _, info = model_store.hash_file(self._folder, path)
                    self._verified.put(path, info, sha256)
                    known = sha256 == entry["sha256"]
                if known:
                    self.result.resumed += entry["size"]
                    continue
            self._verified.drop(path)
            self._journal.write(path, begun=True)
            incoming = Incoming(self._folder, path, entry, known=self._journal.known.get(path, []), span=self._span)
            self.result.resumed += incoming.size - sum(end - start for start, end in incoming.todo)
            self._open += 1
            self._queue.append(incoming)
            if incoming.landed():
                self._queue.remove(incoming)
                self._prove(incoming)
        self._verified.save()

    def _worker(self, number: int) -> None:
        link = Upstream(self._upstreams[number % len(self._upstreams)], self._token)
        while (task := self._next()) is not None:
            incoming, span = task
            try:
                self._fetch(link, incoming, span)
            except NotYet as why:
                with self._turn:
                    self._waiting[incoming.path] = str(why)
                    incoming.not_before = time.monotonic() + incoming.delay
                    incoming.delay = min(incoming.delay * 1.5, BACKOFF[1])
                    incoming.todo.insert(0, span)
                    if incoming not in self._queue:
                        self._queue.insert(0, incoming)
                link.close()
                number += 1
                link = Upstream(self._upstreams[number % len(self._upstreams)], self._token)
            except Exception as error:  # a thread must end the pull with its reason, not vanish silently
                self._fail(str(error) if isinstance(error, StoreError) else f"{incoming.full}: {error!r}", stop=True)
        link.close()

    def _next(self) -> tuple[Incoming, tuple[int, int]] | None:
        """The next range, taken in turn from the first few files that may be asked for now; None at the end."""
        with self._turn:
            while self._open and not self._stop:
                now = time.monotonic()
                ready = [each for each in self._queue if each.not_before <= now][:FILES]
                if ready:
                    self._picked += 1
                    incoming = ready[self._picked % len(ready)]
                    span = incoming.todo.pop(0)
                    if not incoming.todo:
                        self._queue.remove(incoming)
                    return incoming, span
                if now - self._last > self._stall:
                    waits = ", ".join(f"{path} ({why})" for path, why in sorted(self._waiting.items())[:5])
                    self._failed.append(
                        f"no byte came for {self._stall:.0f} s; waiting for {waits or 'open ranges'}; "
                        "see whether the neighbour has the model and its relay runs"
                    )
                    self._stop = True
                    break
                self._turn.wait(max(0.02, min([0.5, *(each.not_before - now for each in self._queue)])))
            self._turn.notify_all()
            return None

    def _fetch(self, link: Upstream, incoming: Incoming, span: tuple[int, int]) -> None:
        at = span[0]

        def sink(block: memoryview) -> None:
            nonlocal at
            while block:
                count = os.pwrite(incoming.handle, block, at)
                at += count
                block = block[count:]
            self._last = time.monotonic()

        link.get(self._base + incoming.path, span, sink)
        self._journal.write(incoming.path, start=span[0], end=span[1])
        with self._turn:
            self.result.received += span[1] - span[0]
            self._waiting.pop(incoming.path, None)
            incoming.delay = BACKOFF[0]
        if incoming.landed(span):
            self._prove(incoming)

    def _prove(self, incoming: Incoming) -> None:
        if incoming.seen() == incoming.sha256:
            os.fsync(incoming.handle)
            self._verified.put(incoming.path, os.fstat(incoming.handle), incoming.sha256)
            self._verified.save()
            os.close(incoming.handle)
        else:
            self._journal.write(incoming.path, again=True)
            if incoming.fetches < FETCHES and incoming.size:
                with self._turn:
                    self.result.refetched.append(incoming.path)
                    incoming.again()
                    self._queue.append(incoming)
                    self._turn.notify_all()
                return
            os.close(incoming.handle)
            self._fail(
                f"{incoming.path}: seen sha256:{incoming.seen()} after {incoming.fetches} fetches, wanted "
                f"sha256:{incoming.sha256}; run a deep check on the neighbour and test the cable",
                stop=False,
            )
        with self._turn:
            self._open -= 1
            self._turn.notify_all()

    def _fail(self, text: str, stop: bool) -> None:
        with self._turn:
            self._failed.append(text)
            self._stop = self._stop or stop
            self._turn.notify_all()

    def _tell(self) -> None:
        with self._turn:
            done, waiting = self.result.received + self.result.resumed, len(self._waiting)
        self._say(
            min(done, self._total),
            self._total,
            f"receiving the model, {self._open} files open" + (f", {waiting} awaited" if waiting else ""),
        )


def pull(
    root: str,
    name: str,
    revision: str,
    upstreams: list[str],
    *,
    token: str,
    manifest: str,
    threads: int = 8,
    span: int = 64 << 20,
    stall: float = 600.0,
    reserve: int = 0,
    say: model_store.Say = model_store.quiet,
) -> Pulled:
    """Have `name`@`revision` with manifest digest `manifest` in the store, from one neighbour's relay addresses.

    `span` and `reserve` are bytes, `stall` the seconds without a single byte after which it gives up. Raises
    StoreError; what was received stays for the next try.
    """
    began = time.monotonic()
    final, partial = relay.final_dir(root, name, revision), relay.partial_dir(root, name, revision)
    report = model_store.check(root, name, revision, manifest=manifest)
    if report.complete:
        return Pulled(manifest=manifest, resumed=report.bytes)
    if not upstreams:
        raise StoreError("no upstream given; wanted one http://<fabric address>:<port> per lane to the neighbour")
    doc = fetch_manifest(name, revision, upstreams, token=token, wanted=manifest, stall=stall)
    model_store.open_partial(root, name, revision, report)
    here = sum(
        min(entry["size"], (partial / path).lstat().st_blocks * 512)
        for path, entry in doc["files"].items()
        if os.path.lexists(partial / path)
    )
    model_store.require_space(root, sum(entry["size"] for entry in doc["files"].values()) - here, reserve)
    write_json(partial / relay.META / "manifest.json", doc)
    work = Pull(partial, doc, upstreams, token, span=span, stall=stall, say=say)
    work.run(threads)
    for path in set(model_store.walk(partial)) - set(doc["files"]):
        (partial / path).unlink()
    model_store.put_in_place(partial, final)
    work.result.seconds = time.monotonic() - began
    say(1, 1, "the model is here and verified")
    return work.result
