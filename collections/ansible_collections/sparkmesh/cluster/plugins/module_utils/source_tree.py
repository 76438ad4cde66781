"""A directory as ``{path: text}``, and the digest that names it: what an image is built from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.plain import canonical_json, sha256_hex
from ansible_collections.sparkmesh.cluster.plugins.module_utils.refusal import Refusal

# Left behind by tools; none of it is source.
CACHE_FOLDERS = frozenset(
    {"__pycache__", ".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv", "build", "dist"}
)
CACHE_SUFFIXES = (".pyc", ".pyo", ".egg-info", ".swp", "~")


class SourceError(Refusal):
    """The directory cannot be carried as text."""


def source_tree(path: str) -> dict[str, str]:
    """Every source file under ``path`` as ``{relative path with slashes: text}``, in path order.

    Caches are skipped. Modes are not kept. Raises ``SourceError`` for a missing or empty directory and for anything
    that is not a UTF-8 text file: binaries belong into the image by digest, links may lead outside the tree.
    """
    root = Path(path)
    if not root.is_dir():
        raise SourceError([f"{path} is no directory: pass the directory that holds the source"])
    files: dict[str, str] = {}
    problems: list[str] = []

    def unreadable(error: OSError) -> None:
        problems.append(f"{error.filename} cannot be listed: {error.strerror}")

    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders[:] = [name for name in folders if not _is_cache(name)]
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in links + [name for name in names if not _is_cache(name)]:
            relative = (Path(folder) / name).relative_to(root).as_posix()
            text, problem = _read(Path(folder) / name)
            if problem:
                problems.append(f"{relative} {problem}")
            else:
                files[relative] = text
    if not files and not problems:
        problems.append(f"{path} holds no source file")
    if problems:
        raise SourceError(sorted(problems))
    return dict(sorted(files.items()))


def source_id(files: Mapping[str, str], extra: Any = None) -> str:
    """``sha256:…`` over paths, texts and ``extra`` (any JSON value: build arguments, base image digest)."""
    return f"sha256:{sha256_hex(canonical_json({'files': dict(files), 'extra': extra}))}"


def _is_cache(name: str) -> bool:
    return name in CACHE_FOLDERS or name.endswith(CACHE_SUFFIXES)


def _read(path: Path) -> tuple[str, str | None]:
    """Text of the file, or what is wrong with it. Bytes are decoded as they are: line ends are part of the source."""
    if path.is_symlink():
        return "", "is a symbolic link: put the file itself there"
    if not path.is_file():
        return "", "is no regular file: remove it"
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return "", "is not UTF-8 text: keep binaries out of the source"
    except OSError as error:
        return "", f"cannot be read: {error.strerror}"
    return ("", "contains a NUL byte: keep binaries out of the source") if "\0" in text else (text, None)
