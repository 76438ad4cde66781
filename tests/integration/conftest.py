"""The lab that these tests share: a fresh one, taken down at the end, with proof that nothing is left.

``SPARKMESH_REUSE_LAB=1`` uses the lab that is up and leaves it up, which saves minutes while developing; the tests that
need fresh nodes then fail by name instead of proving something about used ones.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """A finished command."""

    rc: int
    text: str

    def tail(self, lines: int = 60) -> str:
        """The end of what it printed, for a failed assertion."""
        return f"exit status {self.rc}\n" + "\n".join(self.text.splitlines()[-lines:])


class Lab:
    """Commands as a person would give them in the checkout."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs

    def run(self, *command: str, seconds: int = 600, **environment: str) -> Done:
        """Run ``command`` in the checkout; both streams together, also kept in a log."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            command,
            cwd=REPO,
            env={**os.environ, "PATH": path, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        log = self.logs / f"{len(list(self.logs.iterdir())):02d}-{Path(command[0]).name}-{Path(command[1]).name}.log"
        log.write_text(" ".join(command) + "\n" + done.stdout)
        return Done(done.returncode, done.stdout)

    def lab(self, *arguments: str, seconds: int = 1200) -> Done:
        """``python -m lab …``."""
        return self.run(sys.executable, "-m", "lab", *arguments, seconds=seconds)

    def play(self, playbook: str, *arguments: str, seconds: int = 900) -> Done:
        """``ansible-playbook …`` on the lab's inventory."""
        return self.run("ansible-playbook", playbook, *arguments, seconds=seconds)

    def on(self, node: int, command: str) -> str:
        """What a shell command prints on spark-``node``, as root."""
        state = os.environ.get("SPARKMESH_LAB_DIR") or "/var/lib/sparkmesh-lab"
        done = self.run(
            "ssh", "-q", "-i", f"{state}/ssh/id_ed25519", "-o", f"UserKnownHostsFile={state}/known_hosts",
            f"nvidia@172.31.77.{10 + node}", f"sudo sh -c '{command}'",
        )  # fmt: skip
        assert done.rc == 0, done.tail()
        return done.text.strip()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The triangle, up."""
    made = Lab(tmp_path_factory.mktemp("logs"))
    reuse = os.environ.get("SPARKMESH_REUSE_LAB") == "1"
    if not reuse:
        before = made.lab("down")
        assert before.rc == 0, before.tail()
    up = made.lab("up")
    assert up.rc == 0, up.tail()
    yield made
    if not reuse:
        down = made.lab("down")
        # `down` looks for what is left of it and fails by naming it.
        assert down.rc == 0, down.tail()
        assert "nothing left" in down.text
