"""A content-verified model store: check it, seal a download into it, open it for repair, prune old revisions.

The on-disk format is described in `relay.py`. Sizes are bytes, hashes are lower-case hex, digests "sha256:" + hex.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import hashlib
import json
import os
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils import relay
from ansible_collections.sparkmesh.cluster.plugins.module_utils.progress import write_json
from ansible_collections.sparkmesh.cluster.plugins.module_utils.relay import StoreError

HUB_CACHE = ".cache/huggingface"
"""Where the hub client keeps its own notes below `--local-dir`; not part of a model."""
HASH_THREADS = 4
_BLOCK = 4 << 20

Say = Callable[[int, int, str], None]


def quiet(step: int, of: int, text: str) -> None:
    """A progress callback that tells nobody."""


@dataclass
class Report:
    """What a store holds: paths that are proved, absent, different or not in the manifest, and the manifest digest."""

    manifest: str = ""
    complete: bool = False
    reason: str = ""
    bytes: int = 0
    files_ok: list[str] = field(default_factory=list)
    files_missing: list[str] = field(default_factory=list)
    files_bad: list[dict[str, str]] = field(default_factory=list)
    files_extra: list[str] = field(default_factory=list)

    def judge(self, expected_manifest: str = "") -> None:
        """Set `complete` and `reason` from the lists and from the manifest digest that the caller expects."""
        faults = [f"missing {path}" for path in self.files_missing]
        faults += [f"bad {bad['path']}: seen {bad['seen']}, wanted {bad['wanted']}" for bad in self.files_bad]
        faults += [f"extra {path}" for path in self.files_extra]
        if expected_manifest and self.manifest != expected_manifest:
            faults.insert(0, f"manifest: seen {self.manifest}, wanted {expected_manifest}")
        self.complete = not faults
        self.reason = "; ".join(faults[:20]) + (f"; and {len(faults) - 20} more" if len(faults) > 20 else "")


class Verified:
    """The `verified.json` of one store folder; thread-safe, saved by atomic replacement."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / relay.META / "verified.json"
        self._lock = threading.Lock()
        try:
            doc = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            doc = {}
        self._entries: dict[str, Any] = doc if isinstance(doc, dict) else {}

    def holds(self, path: str, info: os.stat_result, wanted: Mapping[str, Any]) -> bool:
        with self._lock:
            return relay.still_verified(self._entries.get(path), info, wanted)

    def put(self, path: str, info: os.stat_result, sha256: str) -> None:
        with self._lock:
            self._entries[path] = relay.stat_entry(info, sha256)

    def drop(self, path: str) -> None:
        with self._lock:
            self._entries.pop(path, None)

    def save(self) -> None:
        with self._lock:
            write_json(self._path, self._entries)


def walk(folder: Path) -> Iterator[str]:
    """Relative paths of everything below a store that is no folder (links too), without the metadata."""
    skipped = {folder / relay.META, folder / HUB_CACHE}
    for where, folders, names in os.walk(folder):
        base = Path(where)
        folders[:] = [each for each in folders if base / each not in skipped]
        for each in names + [each for each in folders if (base / each).is_symlink()]:
            yield (base / each).relative_to(folder).as_posix()


def hash_file(folder: Path, path: str, blob_id: bool = False) -> tuple[str, str, os.stat_result]:
    """(sha256, git blob id or "", stat) of a store's file, flushed to disk first: a hash of what a crash may
    lose proves nothing. The git blob id is sha1 over "blob <size>\\0" and the content."""
    with relay.open_inside(folder, path) as stream:
        os.fsync(stream.fileno())
        before = os.fstat(stream.fileno())
        sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % before.st_size, usedforsecurity=False)
        while block := stream.read(_BLOCK):
            sha256.update(block)
            if blob_id:
                blob.update(block)
        after = os.fstat(stream.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise StoreError(f"{folder / path} changed while it was read; stop whatever writes there")
    return sha256.hexdigest(), blob.hexdigest() if blob_id else "", after


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The proved manifest of a store folder, or None if there is none."""
    where = folder / relay.META / "manifest.json"
    try:
        return relay.parse_manifest(where.read_bytes(), str(where))
    except (FileNotFoundError, NotADirectoryError):
        return None


def verify(
    folder: Path, expected: Mapping[str, Mapping[str, Any]], *, deep: bool = False, save: bool = True, say: Say = quiet
) -> tuple[Report, dict[str, dict[str, Any]]]:
    """Compare a folder with `expected` {path: {size, sha256 or None, blob_id or None}}.

    Returns the report (not judged) and the files map {path: {size, sha256}} of what is right. A file is read only
    when the cache does not know it as it is now, or when `deep`. With `save` the cache is updated.
    """
    report, good, cache = Report(), {}, Verified(folder)
    report.files_extra = sorted(set(walk(folder)) - set(expected))
    total = sum(int(entry["size"]) for entry in expected.values())
    done = 0

    def one(path: str) -> tuple[str, str, str, os.stat_result | None]:
        """(path, fault or "", sha256, stat where the cache must learn it)."""
        entry, fault = expected[path], ""
        try:
            info = (folder / path).lstat()
            if info.st_size != entry["size"]:
                return path, f"{info.st_size} bytes", "", None
            if entry.get("sha256") and not deep and cache.holds(path, info, entry):
                return path, "", entry["sha256"], None
            sha256, blob, info = hash_file(folder, path, bool(entry.get("blob_id")))
        except (FileNotFoundError, NotADirectoryError):
            return path, "missing", "", None
        except OSError as error:
            return path, f"unreadable ({error.strerror})", "", None
        if entry.get("sha256") not in (None, sha256):
            fault = f"sha256:{sha256}"
        elif entry.get("blob_id") not in (None, blob):
            fault = f"git blob {blob}"
        return path, fault, sha256, None if fault else info

    with concurrent.futures.ThreadPoolExecutor(HASH_THREADS) as pool:
        for path, fault, sha256, info in pool.map(one, sorted(expected)):
            entry = expected[path]
            done += int(entry["size"])
            say(done, total, f"verified {path}")
            if not fault:
                report.files_ok.append(path)
                report.bytes += int(entry["size"])
                good[path] = {"size": int(entry["size"]), "sha256": sha256}
                if info is not None:
                    cache.put(path, info, sha256)
                continue
            cache.drop(path)
            if fault == "missing":
                report.files_missing.append(path)
            else:
                wanted = (
                    f"{entry['size']} bytes"
                    if fault.endswith(" bytes")
                    else (f"sha256:{entry['sha256']}" if entry.get("sha256") else f"git blob {entry.get('blob_id')}")
                )
                report.files_bad.append({"path": path, "seen": fault, "wanted": wanted})
    if save:
        cache.save()
    return report, good


def check(
    root: str, name: str, revision: str, *, deep: bool = False, manifest: str = "", save: bool = True, say: Say = quiet
) -> Report:
    """Report on a store against its own manifest; incompleteness is a result, not an error."""
    folder = relay.final_dir(root, name, revision)
    try:
        doc = read_manifest(folder)
    except StoreError as error:
        return Report(reason=str(error))
    if doc is None:
        partial = relay.partial_dir(root, name, revision)
        return Report(reason=f"no sealed store at {folder}" + ("; it is being received" if partial.is_dir() else ""))
    report, _ = verify(folder, doc["files"], deep=deep, save=save, say=say)
    report.manifest = doc["manifest"]
    report.judge(manifest)
    return report


def hub_expected(url: str, revision: str, token: str = "", timeout: float = 60.0) -> dict[str, dict[str, Any]]:
    """The file list of a revision as the hub states it, `{path: {size, sha256 or None, blob_id or None}}`.

    `url` is `<endpoint>/api/models/<repo>/revision/<revision>?blobs=true`. Large files carry a sha256, small ones
    the id of their git blob. Raises StoreError if the hub answers for another commit or leaves a file unproved.
    """
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            doc = json.load(answer)
        siblings = doc["siblings"]
        seen = doc.get("sha", "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"hub metadata {url}: {error!r}; check endpoint, repository, revision") from error
    if len(revision) == 40 and seen != revision:
        raise StoreError(f"hub metadata {url}: seen commit {seen!r}, wanted {revision}; pin a revision the hub has")
    expected: dict[str, dict[str, Any]] = {}
    for sibling in siblings:
        lfs = sibling.get("lfs") or {}
        entry = {
            "size": lfs.get("size", sibling.get("size")),
            "sha256": lfs.get("sha256"),
            "blob_id": None if lfs else sibling.get("blobId"),
        }
        if not isinstance(entry["size"], int) or not (entry["sha256"] or entry["blob_id"]):
            raise StoreError(
                f"hub metadata {url}: {sibling.get('rfilename')}: no size or no hash; add ?blobs=true to "
                "the URL, or give the expected files with their sha256"
            )
        expected[relay.valid_path(sibling["rfilename"])] = entry
    return expected


def put_in_place(partial: Path, final: Path) -> None:
    """Rename a proved partial store into place; a damaged store that lies there gives way, and is removed after."""
    damaged = final.with_name(f".damaged-{final.name}")
    shutil.rmtree(damaged, ignore_errors=True)
    if final.is_dir():
        final.rename(damaged)
    partial.rename(final)
    parent = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
    shutil.rmtree(damaged, ignore_errors=True)


def seal(
    root: str, name: str, revision: str, expected: Mapping[str, Mapping[str, Any]], *, repo: str = "", say: Say = quiet
) -> Report:
    """Prove the finished download in the partial folder against `expected`, write its manifest, put it in place.

    Raises StoreError naming every extra, missing and bad file; the partial folder then stays for the client to finish.
    """
    partial = relay.partial_dir(root, name, revision)
    if not expected:
        raise StoreError(f"model {name}@{revision}: the expected file list is empty; a store of nothing proves nothing")
    for path, entry in expected.items():
        relay.valid_path(path)
        if not isinstance(entry.get("size"), int):
            raise StoreError(f"expected file {path}: seen {dict(entry)}, wanted its size in bytes and its sha256")
    if not partial.is_dir():
        raise StoreError(f"nothing to seal: {partial} does not exist; download {name}@{revision} into it first")
    report, files = verify(partial, expected, say=say)
    report.judge()
    if not report.complete:
        raise StoreError(f"{partial} is not {name}@{revision}: {report.reason}; run the download again")
    shutil.rmtree(partial / HUB_CACHE, ignore_errors=True)
    with contextlib.suppress(OSError):  # absent, or the model itself has files there
        (partial / HUB_CACHE).parent.rmdir()
    report.manifest = relay.manifest_digest(files)
    write_json(
        partial / relay.META / "manifest.json",
        {
            "name": name,
            "revision": revision,
            "repo": repo,
            "files": files,
            "manifest": report.manifest,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        },
    )
    put_in_place(partial, relay.final_dir(root, name, revision))
    return report


def open_partial(root: str, name: str, revision: str, report: Report | None = None) -> list[str]:
    """Make the partial folder ready to receive; returns what was done, in words.

    A store that `report` calls damaged is moved there without its bad and extra files, so that only those come again.
    """
    final, partial = relay.final_dir(root, name, revision), relay.partial_dir(root, name, revision)
    actions: list[str] = []
    if report is not None and not report.complete and final.is_dir() and not partial.is_dir():
        for path in [bad["path"] for bad in report.files_bad] + report.files_extra:
            (final / path).unlink()
            actions.append(f"removed damaged or foreign {path}")
        final.rename(partial)
        actions.append(f"reopened {final} for repair")
    if not partial.is_dir():
        actions.append(f"created {partial}")
    (partial / relay.META).mkdir(parents=True, exist_ok=True)
    return actions


def require_space(root: str, wanted: int, reserve: int) -> None:
    """Raise StoreError unless the file system of `root` (or of its nearest parent) has `wanted` + `reserve` bytes."""
    where = Path(root).absolute()
    while not where.is_dir():
        where = where.parent
    free = shutil.disk_usage(where).free
    if free < wanted + reserve:
        raise StoreError(
            f"{where}: {free} bytes free, wanted {wanted} for the files and {reserve} in reserve; "
            "prune old revisions (model_allow_prune) or give the store a larger disk"
        )


def prunable(root: str, name: str, keep: list[str]) -> dict[str, int]:
    """{folder name: bytes on disk} of everything of this model that belongs to no revision in `keep`."""
    folder = Path(root, relay.valid_name(name, "model name"))
    kept = {relay.valid_name(revision, "revision") for revision in keep}
    found: dict[str, int] = {}
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if entry.is_dir() and entry.name not in kept and entry.name.removeprefix(".partial-") not in kept:
            found[entry.name] = sum(
                Path(base, each).lstat().st_blocks * 512 for base, _, names in os.walk(entry) for each in names
            )
    return found


def prune(root: str, name: str, keep: list[str]) -> list[str]:
    """Remove what `prunable` lists. Each folder is renamed first: half a removal must never look like a store."""
    folder = Path(root, relay.valid_name(name, "model name"))
    gone = list(prunable(root, name, keep))
    for entry in gone:
        away = folder / f".gone-{entry.removeprefix('.gone-')}"
        if entry != away.name:
            shutil.rmtree(away, ignore_errors=True)
            (folder / entry).rename(away)
        shutil.rmtree(away)
    return gone
