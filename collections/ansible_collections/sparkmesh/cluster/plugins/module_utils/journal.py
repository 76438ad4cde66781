"""What a node was before us, so that a revert gives exactly that back.

One JSON file and byte-exact copies under ``/var/lib/sparkmesh/backup``. The first original of a path wins: later
writes of ours never replace it. The journal is on disk before the change it describes.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import write_file

BACKUP_DIRECTORY = "/var/lib/sparkmesh/backup"


class JournalError(Exception):
    """The journal or a copy it names cannot be used; the text says which and what to do."""


class Journal:
    """The originals one owner keeps. ``root`` is the root of the node, ``name`` the owner ("host", "fabric")."""

    def __init__(self, name: str, root: Path = Path("/")) -> None:
        self._root = root
        self._directory = root / BACKUP_DIRECTORY.lstrip("/")
        self._file = self._directory / f"{name}.json"
        self._data: dict[str, dict[str, Any]] = {"files": {}, "notes": {}}
        if self._file.exists():
            try:
                self._data = {**self._data, **json.loads(self._file.read_text(encoding="utf-8"))}
            except ValueError as problem:
                raise JournalError(
                    f"{self._file} is no JSON ({problem}); it is the only way back, so nothing is changed until it is "
                    "repaired or moved away by hand"
                ) from problem

    @property
    def kept(self) -> list[str]:
        """The paths whose original is held here."""
        return sorted(self._data["files"])

    def keep(self, path: str) -> None:
        """Hold the original of ``path`` (a file, a link, or that there was none) unless it is held already."""
        if path in self._data["files"]:
            return
        real = self._real(path)
        entry: dict[str, Any]
        if real.is_symlink():
            entry = {"kind": "link", "target": str(real.readlink())}
        elif real.exists():
            info = real.stat()
            content = real.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            self._make_directory()
            write_file(self._directory / digest, content, 0o600)
            entry = {
                "kind": "file",
                "sha256": digest,
                "mode": f"{stat.S_IMODE(info.st_mode):04o}",
                "uid": info.st_uid,
                "gid": info.st_gid,
            }
        else:
            entry = {"kind": "absent", "directories": self._missing_parents(real)}
        self._data["files"][path] = entry
        self._save()

    def original(self, path: str) -> bytes | None:
        """The bytes ``path`` had, or None when it was absent or a link, or is not held."""
        entry = self._data["files"].get(path)
        return self._copy(path, entry) if entry and entry["kind"] == "file" else None

    def restore(self, path: str) -> None:
        """Give ``path`` back what it was, with mode and owner, and let the entry go."""
        entry = self._data["files"][path]
        real = self._real(path)
        if entry["kind"] == "file":
            owner = (entry["uid"], entry["gid"]) if os.geteuid() == 0 else None
            content = self._copy(path, entry)
            real.parent.mkdir(parents=True, exist_ok=True)
            write_file(real, content, int(entry["mode"], 8), owner)
        else:
            real.unlink(missing_ok=True)
            if entry["kind"] == "link":
                real.parent.mkdir(parents=True, exist_ok=True)
                real.symlink_to(entry["target"])
            for directory in entry.get("directories", []):
                made = self._real(directory)
                if made.is_dir() and not any(made.iterdir()):
                    made.rmdir()
        del self._data["files"][path]
        self._save()
        # The copy goes last: until the journal no longer names it, it is the way back.
        digest = entry.get("sha256")
        if digest and not self._in_use(digest):
            (self._directory / digest).unlink(missing_ok=True)

    def note(self, topic: str, name: str, value: Any) -> None:
        """Hold the original of something that is no file (a live sysctl, an MTU) unless it is held already."""
        notes = self._data["notes"].setdefault(topic, {})
        if name not in notes:
            notes[name] = value
            self._save()

    def noted(self, topic: str, name: str) -> Any:
        """The held original, or None."""
        return self._data["notes"].get(topic, {}).get(name)

    def forget(self, topic: str, name: str) -> None:
        """Let a note go after its original is back."""
        if self._data["notes"].get(topic, {}).pop(name, None) is not None:
            self._save()

    def _in_use(self, digest: str) -> bool:
        # Two owners may hold equal bytes: a copy goes only when no journal names it.
        return any(digest in journal.read_text(encoding="utf-8") for journal in self._directory.glob("*.json"))

    def _copy(self, path: str, entry: dict[str, Any]) -> bytes:
        copy = self._directory / str(entry["sha256"])
        try:
            content = copy.read_bytes()
        except OSError as problem:
            raise JournalError(f"the original of {path} cannot be read from {copy}: {problem.strerror}") from problem
        seen = hashlib.sha256(content).hexdigest()
        if seen != entry["sha256"]:
            raise JournalError(f"the original of {path} in {copy} was altered: sha256 {seen}, wanted {entry['sha256']}")
        return content

    def _real(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _missing_parents(self, real: Path) -> list[str]:
        missing = []
        parent = real.parent
        while not parent.exists():
            missing.append("/" + str(parent.relative_to(self._root)))
            parent = parent.parent
        return missing

    def _make_directory(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._directory.chmod(0o700)

    def _save(self) -> None:
        self._make_directory()
        text = json.dumps(self._data, indent=1, sort_keys=True) + "\n"
        write_file(self._file, text.encode(), 0o600)
