"""scripts/wheels against folders of wheels made here: pip runs for real, without an index."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

REPO = Path(__file__).resolve().parents[3]


def make_wheel(folder: Path, name: str, version: str, tag: str = "py3-none-any", padding: int = 0) -> Path:
    """A wheel that pip takes; ``padding`` bytes of zeros are stored in it."""
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": b"value = 1\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    if padding:
        files[f"{name}.bin"] = bytes(padding)
    record = ""
    for entry, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{entry},sha256={digest},{len(data)}\n"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in files.items():
            archive.writestr(entry, data)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def line(path: Path, wanted: str | None = None) -> str:
    name, version = path.name.split("-")[:2]
    return f"{name}=={version} --hash=sha256:{wanted or digest(path)}\n"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    for name, value in {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(name, value)
    for name in ("LAB_TORCH_WHEEL", "LAB_TORCH_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def here(wheels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with this Python's pip only, so that the tests do not depend on what else is installed."""
    monkeypatch.setattr(wheels, "pips", lambda: [[sys.executable, "-m", "pip"]])
    monkeypatch.setattr(wheels, "FREE_WANTED", 1_000_000)
    return wheels


def test_fetches_once_and_verifies(
    here: ModuleType, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = tmp_path / "requirements.txt"
    listing.write_text("# two\n" + line(make_wheel(index, "alpha", "1.0")) + line(make_wheel(index, "beta", "2.0")))
    store = tmp_path / "store"
    here.collect(listing, store, [])
    assert sorted(path.name for path in store.glob("*.whl")) == [
        "alpha-1.0-py3-none-any.whl",
        "beta-2.0-py3-none-any.whl",
    ]
    # With an empty index a second run can only succeed by downloading nothing.
    for path in index.iterdir():
        path.unlink()
    capsys.readouterr()
    here.collect(listing, store, [])
    assert capsys.readouterr().out == f"wheels: 2 of 2 are in {store}\n"


def test_a_wrong_hash_is_refused(here: ModuleType, index: Path, tmp_path: Path) -> None:
    listing = tmp_path / "requirements.txt"
    listing.write_text(line(make_wheel(index, "alpha", "1.0"), wanted="0" * 64))
    with pytest.raises(here.WheelError, match=r"(?i)hash"):
        here.collect(listing, tmp_path / "store", [])
    assert not list((tmp_path / "store").glob("*.whl")) and not (tmp_path / "store/.partial").exists()


def test_a_damaged_wheel_is_replaced(here: ModuleType, index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(index, "alpha", "1.0")
    listing = tmp_path / "requirements.txt"
    listing.write_text(line(wheel))
    store = tmp_path / "store"
    store.mkdir()
    (store / wheel.name).write_bytes(b"half a whe")
    here.collect(listing, store, [])
    assert digest(store / wheel.name) == digest(wheel)


TORCH_TAG = "py3-none-any"


def test_torch_cpu_comes_from_where_pip_looks(here: ModuleType, index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(index, "torch", "2.13.0+cpu", TORCH_TAG)
    listing = tmp_path / "requirements.txt"
    listing.write_text(line(wheel))
    here.collect(listing, tmp_path / "store", [])
    assert (tmp_path / "store" / wheel.name).is_file()


def test_torch_too_large_is_refused_before_it_is_fetched(
    here: ModuleType, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = tmp_path / "requirements.txt"
    listing.write_text(line(make_wheel(index, "torch", "2.13.0+cpu", TORCH_TAG, padding=3_000_000)))
    monkeypatch.setattr(here, "TORCH_LIMIT", 2_000_000)
    calls: list[str] = []
    real = here.run_pip

    def noted(pip: list[str], arguments: list[str]) -> str:
        calls.append(arguments[0])
        return str(real(pip, arguments))

    monkeypatch.setattr(here, "run_pip", noted)
    with pytest.raises(here.WheelError, match=r"3 MB.*LAB_TORCH_WHEEL"):
        here.collect(listing, tmp_path / "store", [])
    assert calls == ["install"], "only the dry run may have happened"


@pytest.mark.parametrize(
    ("filename", "size", "why"),
    [
        ("torch-2.13.0+cu130-cp311-cp311-manylinux_2_28_x86_64.whl", 1, "build for cu130"),
        ("torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", 1, "plain x86_64 wheel is the CUDA build"),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", 400_000_001, "400 MB"),
    ],
)
def test_refusals(wheels: ModuleType, filename: str, size: int, why: str) -> None:
    with pytest.raises(wheels.WheelError, match=why):
        wheels.refuse_cuda(filename, size)


def test_the_cpu_build_passes(wheels: ModuleType) -> None:
    wheels.refuse_cuda("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", 191_794_682)
    wheels.refuse_cuda("torch-2.13.0-cp311-cp311-manylinux_2_28_aarch64.whl", 120_000_000)


def test_an_index_with_the_cuda_build_only_says_what_to_set(here: ModuleType, index: Path, tmp_path: Path) -> None:
    make_wheel(index, "torch", "2.13.0+cu130", TORCH_TAG)
    listing = tmp_path / "requirements.txt"
    listing.write_text("torch==2.13.0+cpu --hash=sha256:" + "0" * 64 + "\n")
    with pytest.raises(here.WheelError, match=r"cu130.*not downloaded.*LAB_TORCH_INDEX"):
        here.collect(listing, tmp_path / "store", [])


def test_a_given_torch_wheel_must_match_its_hash(
    here: ModuleType, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    wheel = make_wheel(tmp_path / "own", "torch", "2.13.0+cpu", TORCH_TAG)
    monkeypatch.setenv("LAB_TORCH_WHEEL", str(wheel))
    listing = tmp_path / "requirements.txt"
    listing.write_text(line(wheel, wanted="1" * 64))
    with pytest.raises(here.WheelError, match="wanted 1111"):
        here.collect(listing, tmp_path / "store", [])
    listing.write_text(line(wheel))
    here.collect(listing, tmp_path / "store", [])
    assert (tmp_path / "store" / wheel.name).is_file() and wheel.is_file()


@pytest.mark.parametrize("text", ["alpha>=1", "alpha==1.0", "alpha==1.0 --hash=md5:00", "-r other.txt"])
def test_unpinned_requirements_are_refused(wheels: ModuleType, text: str) -> None:
    with pytest.raises(wheels.WheelError, match="wanted name==version"):
        wheels.parse(text)


def test_the_pinned_list_of_the_lab_is_readable(wheels: ModuleType) -> None:
    needs = wheels.parse((REPO / "lab/serving-requirements.txt").read_text())
    assert [need.version for need in needs if need.name == "torch"] == ["2.13.0+cpu"]
    assert len({need.name.lower() for need in needs}) == len(needs)


def test_the_command_reports_trouble_in_words(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(REPO / "scripts/wheels"),
        "--requirements",
        str(tmp_path / "no"),
        "--dest",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "does not exist" in done.stderr and "Traceback" not in done.stderr
