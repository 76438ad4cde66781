"""Why a node wants a reboot."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.probe_host import REBOOT_FILES, read_host
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import Reader

PACKAGES, OURS = REBOOT_FILES


@pytest.mark.parametrize(
    ("files", "reasons"),
    [
        ({}, []),
        ({PACKAGES: ""}, []),
        ({PACKAGES: "linux\nlibc6\nlinux\n"}, ["package linux asks for it", "package libc6 asks for it"]),
        ({OURS: "kernel 6.17 is installed, 6.14 runs\n\n"}, ["kernel 6.17 is installed, 6.14 runs"]),
        ({OURS: "ours\n", PACKAGES: "dbus\n"}, ["package dbus asks for it", "ours"]),
    ],
)
def test_reasons_are_read_from_both_files(tmp_path: Path, files: dict[str, str], reasons: list[str]) -> None:
    for path, text in files.items():
        target = tmp_path / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    reader = Reader(tmp_path)
    assert read_host(reader)["reboot_reasons"] == reasons
    assert not [key for key in reader.unobserved if "reboot" in key], "an absent file is no reason, not a blind spot"


def test_a_file_that_cannot_be_read_is_unobserved(tmp_path: Path) -> None:
    (tmp_path / PACKAGES.lstrip("/")).mkdir(parents=True)
    reader = Reader(tmp_path)
    read_host(reader)
    assert [key for key in reader.unobserved if "reboot" in key], reader.unobserved
