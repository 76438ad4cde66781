"""scripts/setup: its functions are sourced, with stand-ins first in PATH."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]


def program(folder: Path, name: str, body: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path


def python(folder: Path, name: str, version: str) -> Path:
    """A stand-in that answers the two questions setup asks: am I new enough, and where am I?"""
    minor = version.split(".")[1]
    return program(folder, name, f'case "$2" in *version_info*) exit $(( {minor} < 12 ));; *) readlink -f "$0";; esac')


def bash(script: str, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``script`` after the functions of scripts/setup; /usr/bin/python3 of this machine never counts."""
    prelude = (
        f'source "{REPO / "scripts/setup"}"\n'
        "VENV=/nonexistent/venv\n"
        'real_new_enough="$(declare -f new_enough)"; eval "real_${real_new_enough}"\n'
        'new_enough() { [[ "$1" != /usr/bin/python3 ]] && real_new_enough "$1"; }\n'
    )
    return subprocess.run(
        ["/bin/bash", "-c", prelude + script],
        env={"PATH": path, "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH folder with what the script itself needs and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("bash", "readlink", "sort", "dirname", "id", "cat", "sha256sum", "cut", "awk", "df", "env", "sed"):
        found = next(p for p in (Path("/usr/bin") / name, Path("/bin") / name) if p.exists())
        (folder / name).symlink_to(found)
    return folder


def test_the_newest_in_path_wins(tools: Path, tmp_path: Path) -> None:
    for name, version in (("python3.12", "3.12"), ("python3.13", "3.13"), ("python3", "3.11")):
        python(tmp_path / "bin", name, version)
    done = bash("find_python", f"{tmp_path / 'bin'}:{tools}")
    assert done.stdout.strip() == str(tmp_path / "bin/python3.13"), done.stderr


def test_a_shim_that_does_not_run_is_passed_over_for_pyenv(tools: Path, tmp_path: Path) -> None:
    program(tmp_path / "bin", "python3.13", 'echo "pyenv: python3.13: command not found" >&2; exit 127')
    program(tmp_path / "bin", "pyenv", f'echo "{tmp_path}/pyenv"')
    for version in ("3.9.18", "3.11.7", "3.12.1"):
        python(tmp_path / f"pyenv/versions/{version}/bin", "python3", version)
    done = bash("find_python", f"{tmp_path / 'bin'}:{tools}")
    assert done.stdout.strip() == str(tmp_path / "pyenv/versions/3.12.1/bin/python3"), done.stderr


def test_plain_python3_counts_when_it_is_new_enough(tools: Path, tmp_path: Path) -> None:
    python(tmp_path / "bin", "python3", "3.13")
    done = bash("find_python", f"{tmp_path / 'bin'}:{tools}")
    assert done.stdout.strip() == str(tmp_path / "bin/python3"), done.stderr


def test_the_callers_choice_comes_first(tools: Path, tmp_path: Path) -> None:
    python(tmp_path / "bin", "python3.14", "3.14")
    own = python(tmp_path / "own", "python", "3.12")
    done = bash("find_python", f"{tmp_path / 'bin'}:{tools}", SPARKMESH_PYTHON=str(own))
    assert done.stdout.strip() == str(own), done.stderr


def test_inside_a_virtual_environment_the_python_behind_it_is_taken() -> None:
    # For real: this test runs in a virtual environment, and making one out of itself would destroy it.
    assert sys.prefix != sys.base_prefix, "run the tests from a virtual environment"
    done = bash("find_python", "/usr/bin:/bin", SPARKMESH_PYTHON=sys.executable)
    assert Path(done.stdout.strip()).is_relative_to(sys.base_prefix), done.stderr


def test_none_found_names_all_that_was_looked_at(tools: Path, tmp_path: Path) -> None:
    python(tmp_path / "bin", "python3", "3.11")
    done = bash("find_python", f"{tmp_path / 'bin'}:{tools}")
    assert done.returncode == 1 and done.stdout == ""
    for name in ("3.12", "python3.14", "python3.12", "/usr/bin/python3", "SPARKMESH_PYTHON"):
        assert name in done.stderr


APT = "dpkg-query() { return 1; }; "


def test_each_missing_package_is_named_with_its_reason(tools: Path, tmp_path: Path) -> None:
    program(tmp_path / "bin", "apt-get", f'echo "$@" >>"{tmp_path}/calls"')
    done = bash(
        APT + 'id() { echo 0; }; need_apt "zstd=images are compressed" "git=commits"', f"{tmp_path / 'bin'}:{tools}"
    )
    assert done.returncode == 0, done.stderr
    assert "zstd is missing: images are compressed" in done.stdout and "git is missing: commits" in done.stdout
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 1 and calls[0].endswith("zstd git") and "--no-install-recommends" in calls[0]


def test_a_stale_index_is_refreshed_once(tools: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    body = f'echo "$*" >>"{tmp_path}/calls"; [[ "$*" == *update* ]] && touch "{fresh}"; [[ -e "{fresh}" ]]'
    program(tmp_path / "bin", "apt-get", body)
    (tools / "touch").symlink_to("/usr/bin/touch")
    done = bash(APT + 'id() { echo 0; }; need_apt "zstd=why"', f"{tmp_path / 'bin'}:{tools}")
    assert done.returncode == 0, done.stderr
    verbs = [["install", "update"]["update" in call] for call in (tmp_path / "calls").read_text().splitlines()]
    assert verbs == ["install", "update", "install"]


def test_without_root_and_sudo_the_line_to_run_is_printed(tools: Path, tmp_path: Path) -> None:
    program(tmp_path / "bin", "apt-get", "exit 99")
    done = bash(APT + 'id() { echo 1000; }; need_apt "zstd=why"', f"{tmp_path / 'bin'}:{tools}")
    assert done.returncode == 1
    assert "apt-get update && apt-get install -y --no-install-recommends zstd" in done.stderr


def test_a_full_disk_is_named(tools: Path, tmp_path: Path) -> None:
    done = bash(f'need_space "{tmp_path}" 99999999', str(tools))
    assert done.returncode == 1 and "GiB free, wanted 99999999 GiB" in done.stderr


def test_a_failed_pip_leaves_no_half_made_environment(tools: Path, tmp_path: Path) -> None:
    body = (
        'case "$*" in *version_info*) exit 0;; *sys.executable*) readlink -f "$0";; *ensurepip*) exit 0;; '
        '"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python";; *pip*) echo "ERROR: no network" >&2; exit 1;; esac'
    )
    program(tmp_path / "bin", "python3.14", body)
    for name in ("mkdir", "cp", "rm", "mktemp", "grep", "tail"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    venv = tmp_path / "venv"
    done = bash(f'need_apt() {{ :; }}; VENV="{venv}"; setup_control', f"{tmp_path / 'bin'}:{tools}")
    assert done.returncode == 1
    assert "ERROR: no network" in done.stderr and "Nothing half-made is left" in done.stderr
    assert not venv.exists()


def test_a_part_with_its_stamp_is_not_made_again(tools: Path, tmp_path: Path) -> None:
    chosen = python(tmp_path / "bin", "python3.13", "3.13")
    venv = tmp_path / "venv"
    program(venv / "bin", "python", "exit 1")
    script = f'VENV="{venv}"; need_apt() {{ exit 9; }}; '
    stamp = (
        'digest="$(stamp_of "$ROOT/requirements/control.txt" <(printf "%s" "$VENV"))"; '
        f'printf "%s\\n%s\\n" "$digest" "{chosen}" >"$VENV/.sparkmesh-stamp"; '
    )
    # A newer Python that turns up in PATH is no reason to make it again.
    python(tmp_path / "bin", "python3.14", "3.14")
    done = bash(script + stamp + "setup_control", f"{tmp_path / 'bin'}:{tools}")
    assert done.returncode == 0 and "up to date" in done.stdout, done.stderr
    done = bash(script + 'echo old >"$VENV/.sparkmesh-stamp"; setup_control', f"{tmp_path / 'bin'}:{tools}")
    assert done.returncode == 9, "another stamp must start the work"


def test_an_unknown_part_is_refused(tools: Path) -> None:
    done = bash("main contorl", str(tools))
    assert done.returncode == 1 and "the parts are: control collections lab all" in done.stderr
