"""The guard as a real process: a changing meminfo, a listening notify socket, docker and systemctl that only record."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

GUARD = Path(__file__).parents[3] / "runtime" / "src" / "sparkmesh_runtime" / "guard.py"
MIB = 1 << 20


class Guarded:
    """One guard process and everything around it, in a temporary directory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.meminfo, self.ready = folder, folder / "meminfo", folder / "ready"
        self.calls, self.evidence = folder / "calls", folder / "evidence"
        for name in ("docker", "systemctl"):
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n')
            program.chmod(0o755)
        self.spec = folder / "rank.json"
        self.spec.write_text(
            json.dumps(
                {
                    "guard": {
                        "start_floor_bytes": 500 * MIB,
                        "start_period_s": 0.02,
                        "steady_floor_bytes": 300 * MIB,
                        "steady_period_s": 0.03,
                    }
                }
            )
        )
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.settimeout(20)
        self.process: subprocess.Popen[str] | None = None

    def memory(self, mebibytes: int) -> None:
        new = self.meminfo.with_suffix(".new")
        new.write_text(f"MemTotal: 999999 kB\nMemAvailable: {mebibytes * 1024} kB\n")
        new.replace(self.meminfo)

    def start(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                str(GUARD),
                "--spec",
                str(self.spec),
                "--meminfo",
                str(self.meminfo),
                "--ready",
                str(self.ready),
                "--evidence",
                str(self.evidence),
            ],
            env={"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "NOTIFY_SOCKET": str(self.folder / "notify")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def heard(self, word: str) -> str:
        """Wait for a notification that contains `word`."""
        while True:
            message = self.socket.recv(4096).decode()
            if word in message:
                return message

    def drain(self) -> list[str]:
        """What has been notified so far and not read."""
        found = []
        self.socket.setblocking(False)
        try:
            while True:
                found.append(self.socket.recv(4096).decode())
        except BlockingIOError:
            self.socket.settimeout(20)
            return found

    def record(self) -> dict[str, Any]:
        (path,) = self.evidence.glob("guard-*.json")
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    def close(self) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.communicate(timeout=20)
        self.socket.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    world = Guarded(tmp_path)
    yield world
    world.close()


STOPPED = "docker kill --signal KILL sparkmesh-rank\nsystemctl stop --no-block sparkmesh-rank.service\n"


def test_ready_after_the_first_good_sample_then_a_breach_in_the_start_phase(guarded: Guarded) -> None:
    guarded.memory(600)
    process = guarded.start()
    first = guarded.heard("READY=1")
    assert "phase start" in first and str(600 * MIB) in first
    assert not guarded.calls.exists()
    guarded.memory(499)
    assert process.wait(20) == 1
    assert guarded.calls.read_text() == STOPPED
    record = guarded.record()
    assert record["seen_bytes"] == 499 * MIB and record["floor_bytes"] == 500 * MIB and record["phase"] == "start"
    assert "MemTotal: 999999 kB" in record["meminfo"]
    assert all(process["rss_bytes"] >= 0 and process["command"] for process in record["processes"])
    resident = [process["rss_bytes"] for process in record["processes"]]
    assert resident and resident == sorted(resident, reverse=True)


def test_the_marker_switches_to_the_steady_floor_and_its_removal_back(guarded: Guarded) -> None:
    guarded.memory(600)
    process = guarded.start()
    guarded.heard("READY=1")
    guarded.ready.touch()
    guarded.heard("phase steady")
    guarded.memory(400)
    assert str(400 * MIB) in guarded.heard(str(400 * MIB))
    assert process.poll() is None and not guarded.calls.exists()
    guarded.ready.unlink()
    assert process.wait(20) == 1 and guarded.record()["phase"] == "start"


def test_a_breach_in_the_steady_phase(guarded: Guarded) -> None:
    guarded.memory(600)
    process = guarded.start()
    guarded.heard("READY=1")
    guarded.ready.touch()
    guarded.heard("phase steady")
    guarded.memory(299)
    assert process.wait(20) == 1 and guarded.record()["phase"] == "steady"


def test_too_little_memory_at_first_never_says_ready(guarded: Guarded) -> None:
    guarded.memory(100)
    assert guarded.start().wait(20) == 1
    assert guarded.drain() == [] and guarded.calls.read_text() == STOPPED


@pytest.mark.parametrize(
    "spoil", [lambda path: path.unlink(), lambda path: path.write_text("MemAvailable: lots\n")], ids=["gone", "garbage"]
)
def test_unreadable_state_is_a_failure(guarded: Guarded, spoil: Callable[[Path], None]) -> None:
    guarded.memory(600)
    process = guarded.start()
    guarded.heard("READY=1")
    spoil(guarded.meminfo)
    assert process.wait(20) == 1
    record = guarded.record()
    assert record["seen_bytes"] is None and "unreadable 3 times" in record["reason"]
    assert guarded.calls.read_text() == STOPPED


def test_a_marker_from_an_earlier_run_does_not_lower_the_floor(guarded: Guarded) -> None:
    guarded.ready.touch()
    guarded.memory(400)
    assert guarded.start().wait(20) == 1 and guarded.record()["phase"] == "start"


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{}",
        '{"guard": {"start_floor_bytes": 1, "start_period_s": 0, "steady_floor_bytes": 1, "steady_period_s": 1}}',
    ],
    ids=["gone", "empty", "zero"],
)
def test_no_limits_no_guard(guarded: Guarded, text: str | None) -> None:
    guarded.memory(600)
    guarded.spec.unlink() if text is None else guarded.spec.write_text(text)
    process = guarded.start()
    assert process.wait(20) == 2 and guarded.drain() == []
    assert process.stderr is not None and "fix:" in process.stderr.read()


def test_it_stops_the_unit_even_where_docker_is_missing_and_evidence_cannot_be_written(guarded: Guarded) -> None:
    (guarded.folder / "bin" / "docker").write_text("#!/bin/sh\nexit 1\n")
    guarded.evidence.write_text("a file where the directory should be")
    guarded.memory(100)
    process = guarded.start()
    assert process.wait(20) == 1
    assert guarded.calls.read_text() == "systemctl stop --no-block sparkmesh-rank.service\n"
    assert process.stderr is not None and "evidence not written" in process.stderr.read()


def test_sigterm_is_an_ordinary_end(guarded: Guarded) -> None:
    guarded.memory(600)
    process = guarded.start()
    guarded.heard("READY=1")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == -signal.SIGTERM
    time.sleep(0.05)
    assert not guarded.calls.exists() and not guarded.evidence.exists()
