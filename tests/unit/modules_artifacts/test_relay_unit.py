"""The relay as a unit, driven through Ansible's own module archive with stand-ins for systemd's commands."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils import relay, relay_unit
from ansible_collections.sparkmesh.cluster.plugins.module_utils.relay import StoreError

TOKEN = "0123456789abcdef-token"

SYSTEMD = '''\
#!{python} -I
"""systemctl, systemd-run and journalctl over a folder: one unit, started for real as a process."""
import json, os, signal, subprocess, sys
home = {home!r}
state = os.path.join(home, "unit.json")
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(os.path.join(home, "calls"), "a") as calls:
    calls.write(" ".join([name, *words]) + "\\n")
def alive(unit):
    try:
        with open("/proc/%d/stat" % unit["pid"]) as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
unit = json.load(open(state)) if os.path.exists(state) else None
if name == "systemd-run":
    options = [word for word in words if word.startswith("--")]
    first = next(index for index, word in enumerate(words) if not word.startswith("--"))
    about = next(word.partition("=")[2] for word in words if word.startswith("--description="))
    with open(os.path.join(home, "journal"), "w") as journal:
        child = subprocess.Popen(words[first:], stdin=subprocess.DEVNULL, stdout=journal, stderr=journal,
                                 start_new_session=True)
    json.dump({{"pid": child.pid, "description": about}}, open(state, "w"))
elif name == "journalctl":
    print(open(os.path.join(home, "journal")).read())
elif words[0] == "show":
    up = bool(unit) and alive(unit)
    print("ActiveState=" + ("active" if up else "inactive"))
    print("Description=" + (unit["description"] if up else words[-1]))
elif words[0] == "stop" and unit and alive(unit):
    os.kill(unit["pid"], signal.SIGTERM)
    os.unlink(state)
'''


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home, commands = tmp_path / "systemd", tmp_path / "bin"
    home.mkdir()
    commands.mkdir()
    for name in ("systemctl", "systemd-run", "journalctl"):
        (commands / name).write_text(SYSTEMD.format(python=sys.executable, home=str(home)))
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    yield home
    if (home / "unit.json").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads((home / "unit.json").read_text())["pid"], signal.SIGTERM)


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])


def service(tmp_path: Path, **options: Any) -> relay_unit.Service:
    given: dict[str, Any] = {
        "root": str(tmp_path / "models"),
        "addresses": ("127.0.0.1", "127.0.0.2"),
        "port": free_port(),
        "token": TOKEN,
        "idle": 60.0,
        "program": str(tmp_path / "lib" / "relay.py"),
        "token_file": str(tmp_path / "run" / "relay.token"),
    }
    return relay_unit.Service(**{**given, **options})


def test_serve_again_restart_and_stop(tmp_path: Path, systemd: Path) -> None:
    wanted = service(tmp_path)
    assert len(relay_unit.plan(wanted)) == 2 and not (tmp_path / "lib").exists()
    assert len(relay_unit.serve(wanted)) == 2
    assert Path(wanted.program).read_text() == Path(relay.__file__).read_text()
    assert Path(wanted.token_file).stat().st_mode & 0o777 == 0o600
    assert TOKEN not in (systemd / "calls").read_text(), "no secret in any command line"
    assert relay_unit.serve(wanted) == []
    other = service(tmp_path, port=wanted.port, token=TOKEN + "2")
    assert relay_unit.serve(other) == [f"restart {relay_unit.UNIT} on 127.0.0.1, 127.0.0.2 port {wanted.port}"]
    assert relay_unit.unserve(wanted.token_file, check=True) == relay_unit.unserve(wanted.token_file)
    assert relay_unit.unserve(wanted.token_file) == [] and not Path(wanted.token_file).exists()


def test_an_address_that_is_not_here_is_named_with_the_units_last_words(tmp_path: Path, systemd: Path) -> None:
    with pytest.raises(StoreError, match=r"does not answer on 203\.0\.113\.7 .*cannot listen on 203\.0\.113\.7"):
        relay_unit.serve(service(tmp_path, addresses=("203.0.113.7",)))


@pytest.mark.parametrize("options", [{"token": "short"}, {"addresses": ()}, {"addresses": ("0.0.0.0",)}])
def test_unsafe_relays_are_refused(tmp_path: Path, systemd: Path, options: dict[str, Any]) -> None:
    with pytest.raises(StoreError):
        relay_unit.serve(service(tmp_path, **options))
    assert not (systemd / "unit.json").exists()


def test_the_source_comes_out_of_a_zip_too(tmp_path: Path) -> None:
    """As in Ansible's module archive: no file of that name is on the disk."""
    folder = Path(relay.__file__).parents[5]
    archive = tmp_path / "payload.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        parts = Path("ansible_collections/sparkmesh/cluster/plugins/module_utils")
        for name in ("relay", "relay_unit", "progress", "system"):
            packed.write(folder / parts / f"{name}.py", str(parts / f"{name}.py"))
        for parent in [*list(parts.parents)[:-1], parts]:
            packed.writestr(f"{parent}/__init__.py", "")
    code = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(archive)!r})
        from ansible_collections.sparkmesh.cluster.plugins.module_utils import relay_unit
        assert {str(archive)!r} in relay_unit.__file__
        sys.stdout.write(relay_unit.source())
    """)
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == Path(relay.__file__).read_text(), done.stderr


def test_ansible_ships_the_module_whole(tmp_path: Path) -> None:
    """One real run through ansible: everything the module imports must be found and packed."""
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "ansible"),
            "localhost",
            "-m",
            "sparkmesh.cluster.model_store",
            "-a",
            json.dumps({"root": str(tmp_path), "name": "tiny", "revision": "r1"}),
        ],
        env={
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(Path(relay.__file__).parents[5]),
            "HOME": str(tmp_path),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.minimal",
            "ANSIBLE_LOAD_CALLBACK_PLUGINS": "0",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "no sealed store at" in done.stdout, done.stdout + done.stderr
