"""The page-table allocator: its own checks pass, and they are able to fail."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "files" / "kernel-patches" / "nvidia-uvm"


def _make(source: Path, target: str, build: Path) -> subprocess.CompletedProcess[str]:
    for tool in ("gcc", "make", "sed"):
        if shutil.which(tool) is None:
            pytest.fail(f"{tool} is not installed, wanted for the allocator's checks: install gcc, make and sed")
    return subprocess.run(
        ["make", "-C", str(source), target, f"BUILD={build}"], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("target", ["property", "threads", "check-table"])
def test_check_passes(target: str, tmp_path: Path) -> None:
    done = _make(SOURCE, target, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_mutant_is_caught(tmp_path: Path) -> None:
    wanted = sum(1 for line in (SOURCE / "test" / "mutants.txt").read_text().splitlines() if not line.startswith("#"))
    done = _make(SOURCE, "mutants", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"mutants: {wanted} of {wanted} caught" in done.stdout
    assert wanted >= 25


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        pytest.param("harmless|s/hint = slot + 1/hint = slot/", "survived: harmless", id="survivor"),
        pytest.param("stale|s/no such text/x/", "mutant stale changes nothing", id="outdated"),
    ],
)
def test_mutation_check_can_fail(edit: str, complaint: str, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(SOURCE, tmp_path / "copy", ignore=shutil.ignore_patterns("build")))
    (copy / "test" / "mutants.txt").write_text(edit + "\n")
    done = _make(copy, "mutants", tmp_path)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_table_check_can_fail(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(SOURCE, tmp_path / "copy", ignore=shutil.ignore_patterns("build")))
    readme = copy / "README.md"
    text = readme.read_text()
    number = re.search(r"^\| 64 KiB \| (\d+) ", text, re.MULTILINE)
    assert number is not None
    readme.write_text(text.replace(number.group(1), str(int(number.group(1)) + 1)))
    assert _make(copy, "check-table", tmp_path).returncode != 0
