"""One lab command at a time."""

import json
import os
from pathlib import Path

import pytest

from lab import lock
from lab.shell import LabError


def test_second_command_is_told_who_holds_it_and_how_to_take_over(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lock"
    with lock.held(path, "python -m lab up", Path("/clone/one")):
        with pytest.raises(LabError) as refused, lock.held(path, "python -m lab down", Path("/clone/two")):
            pytest.fail("two commands held the lock")
        text = str(refused.value)
        assert "`python -m lab up`" in text and "/clone/one" in text and f"kill {os.getpid()}" in text
    with lock.held(path, "python -m lab down", Path("/clone/two")):
        assert json.loads(path.read_text())["command"] == "python -m lab down"
    assert path.read_text() == ""


def test_a_failed_command_releases_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(ZeroDivisionError), lock.held(path, "x", tmp_path):
        raise ZeroDivisionError
    with lock.held(path, "y", tmp_path):
        pass


@pytest.mark.parametrize("text", ['{"command": "python -m lab up", "pid": 1, "user": "u", "since": 0}', "{broken"])
def test_what_a_dead_command_left_is_taken_over(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lock"
    path.write_text(text)
    with lock.held(path, "new", tmp_path):
        assert json.loads(path.read_text())["command"] == "new"
    assert ("taking over" in capsys.readouterr().out) == text.endswith("}")
