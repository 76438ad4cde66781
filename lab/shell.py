"""Run programs, report steps, fail with a sentence that helps."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


class LabError(Exception):
    """Something the person at the keyboard can act on. ``fix`` says how."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(f"{what}\n  fix: {fix}" if fix else what)


def attempt(
    command: Sequence[str], *, stdin: str | None = None, env: dict[str, str] | None = None, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its result whatever its exit status; a missing program is status 127."""
    try:
        return subprocess.run(
            list(command),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **(env or {})},
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(list(command), 127, "", f"{command[0]}: not found")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(command), 124, "", f"no end after {timeout:.0f} s")


def run(
    command: Sequence[str], *, stdin: str | None = None, env: dict[str, str] | None = None, timeout: float = 600
) -> str:
    """Run a program that has to succeed; return its standard output, stripped.

    Raises LabError with the command, the exit status and the end of what it said.
    """
    done = attempt(command, stdin=stdin, env=env, timeout=timeout)
    if done.returncode:
        said = "\n    ".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise LabError(f"`{' '.join(command)}` ended with status {done.returncode}, wanted 0:\n    {said}")
    return done.stdout.strip()


@dataclass
class Step:
    """A step under way; set ``note`` to say how it went."""

    note: str = ""


@contextmanager
def step(what: str, why: str) -> Iterator[Step]:
    """Print one line for a step: what, why, how it went and the seconds it took."""
    start = time.monotonic()
    progress = Step()
    sys.stdout.write(f"{what:<14} {why} ... ")
    sys.stdout.flush()
    try:
        yield progress
    except BaseException:
        print(f"failed  {time.monotonic() - start:.1f} s", flush=True)
        raise
    print(f"{progress.note or 'done'}  {time.monotonic() - start:.1f} s", flush=True)


def say(text: str) -> None:
    """Print a note between steps."""
    print(text, flush=True)
