"""A folder of models as the Hugging Face hub would describe it."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

_PART = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_LARGE = 10 * 2**20
# A fixed date: the revision says what is in the repository, the clock of the lab machine says nothing.
_DATE = "2025-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class Entry:
    """One file of a repository; ``oid`` is git's blob id, ``sha256`` the content's."""

    name: str
    path: Path
    size: int
    sha256: str
    oid: str

    @property
    def large(self) -> bool:
        """Whether the hub would keep it outside git, and so publish its SHA-256."""
        return self.name.endswith(".safetensors") or self.size > _LARGE

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.oid

    @property
    def lfs(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "oid": self.sha256, "size": self.size, "pointerSize": 134}


class NotThere(Exception):
    """What a request asked for does not exist; ``code`` is the hub's X-Error-Code for it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Hub:
    """The models under ``root/<organisation>/<name>/``; contents may change between two requests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._hashes: dict[tuple[str, int, int], tuple[str, str]] = {}
        self._lock = Lock()

    def _hash(self, path: Path) -> tuple[int, str, str]:
        found = path.stat()
        key = (str(path), found.st_mtime_ns, found.st_size)
        with self._lock:
            if key not in self._hashes:
                git = hashlib.sha1(f"blob {found.st_size}\0".encode(), usedforsecurity=False)
                plain = hashlib.sha256()
                with path.open("rb") as stream:
                    while chunk := stream.read(1 << 20):
                        git.update(chunk)
                        plain.update(chunk)
                self._hashes[key] = (plain.hexdigest(), git.hexdigest())
            return found.st_size, *self._hashes[key]

    def entries(self, repo: str, revision: str = "main") -> tuple[str, list[Entry]]:
        """The 40-hex commit and the files of a repository. Raises NotThere for a wrong name or revision."""
        parts = repo.split("/")
        folder = self.root.joinpath(*parts)
        if len(parts) != 2 or not all(_PART.match(part) for part in parts) or not folder.is_dir():
            raise NotThere("RepoNotFound", f"no model {repo} here")
        files = []
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.is_file() and not any(
                part.startswith(".") and part != ".gitattributes" for part in name.split("/")
            ):
                files.append(Entry(name, path, *self._hash(path)))
        listing = "".join(f"{entry.sha256}  {entry.name}\n" for entry in files)
        commit = hashlib.sha256(listing.encode()).hexdigest()[:40]
        if revision not in ("main", commit):
            raise NotThere("RevisionNotFound", f"{repo} has main = {commit} and no revision {revision}")
        return commit, files

    def info(self, repo: str, revision: str, blobs: bool) -> dict[str, Any]:
        """The answer to ``/api/models/<repo>``; ``blobs`` adds size and hashes to every file."""
        commit, files = self.entries(repo, revision)
        siblings: list[dict[str, Any]] = []
        for entry in files:
            sibling: dict[str, Any] = {"rfilename": entry.name}
            if blobs:
                sibling |= {"size": entry.size, "blobId": entry.oid} | ({"lfs": entry.lfs} if entry.large else {})
            siblings.append(sibling)
        return {
            "_id": commit[:24], "id": repo, "modelId": repo, "author": repo.partition("/")[0], "sha": commit,
            "lastModified": _DATE, "createdAt": _DATE, "private": False, "gated": False, "disabled": False,
            "downloads": 0, "likes": 0, "tags": [], "library_name": "transformers", "siblings": siblings,
        }  # fmt: skip

    def tree(self, repo: str, revision: str, folder: str, recursive: bool) -> list[dict[str, Any]]:
        """The answer to ``/api/models/<repo>/tree/<revision>/<folder>``."""
        _, files = self.entries(repo, revision)
        prefix = f"{folder}/" if folder else ""
        rows: dict[str, dict[str, Any]] = {}
        for entry in files:
            if not entry.name.startswith(prefix):
                continue
            inner = entry.name.removeprefix(prefix).split("/")
            for depth in range(1, len(inner) if recursive else min(len(inner), 2)):
                name = prefix + "/".join(inner[:depth])
                oid = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
                rows[name] = {"type": "directory", "path": name, "size": 0, "oid": oid}
            if recursive or len(inner) == 1:
                row = {"type": "file", "path": entry.name, "size": entry.size, "oid": entry.oid}
                rows[entry.name] = row | ({"lfs": entry.lfs} if entry.large else {})
        if folder and not rows:
            raise NotThere("EntryNotFound", f"{repo} has no folder {folder}")
        return [rows[name] for name in sorted(rows)]

    def file(self, repo: str, revision: str, name: str) -> tuple[str, Entry]:
        """The commit and one file. Raises NotThere."""
        commit, files = self.entries(repo, revision)
        for entry in files:
            if entry.name == name:
                return commit, entry
        raise NotThere("EntryNotFound", f"{repo} at {commit[:12]} has no file {name}")
