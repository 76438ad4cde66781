"""A directory as text, and its digest."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.source_tree import SourceError, source_id, source_tree


def fill(root: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(root)


def test_texts_without_caches(tmp_path: Path) -> None:
    root = fill(
        tmp_path,
        {
            "b/c.py": b"x = 1\r\n",
            "a.txt": "grüße {{ x }}".encode(),
            "empty": b"",
            "b/__pycache__/c.pyc": b"\x00\xff",
            "x.egg-info/PKG-INFO": b"x",
            ".mypy_cache/x": b"\xff",
            "old.pyc": b"\xff",
        },
    )
    files = source_tree(root)
    assert files == {"a.txt": "grüße {{ x }}", "b/c.py": "x = 1\r\n", "empty": ""}
    assert list(files) == sorted(files)


def test_what_is_no_text_is_named_all_at_once(tmp_path: Path) -> None:
    root = fill(tmp_path, {"good": b"x", "lib/a.so": b"\x7fELF\xff", "lib/nul.txt": b"a\x00b"})
    (tmp_path / "link").symlink_to("good")
    (tmp_path / "folder").symlink_to("lib")
    with pytest.raises(SourceError) as refused:
        source_tree(root)
    assert [problem.split()[0] for problem in refused.value.problems] == ["folder", "lib/a.so", "lib/nul.txt", "link"]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no source file"):
        source_tree(str(tmp_path))
    with pytest.raises(SourceError, match="no directory"):
        source_tree(str(tmp_path / "gone"))


def test_the_digest_depends_on_content_and_extra_alone() -> None:
    files = {"a": "1", "b": "2"}
    first = source_id(files, {"base": "x", "args": [1]})
    assert first == source_id({"b": "2", "a": "1"}, {"args": [1], "base": "x"})
    others = [
        source_id(files),
        source_id({"a": "1", "b": "3"}, {"base": "x", "args": [1]}),
        source_id({"a": "1", "c": "2"}, {"base": "x", "args": [1]}),
        source_id({"a": "1"}, {"base": "x", "args": [1]}),
        source_id(files, {"base": "y", "args": [1]}),
    ]
    assert len({first, *others}) == 6
    assert first.startswith("sha256:")
    assert len(first) == 71
