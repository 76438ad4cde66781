"""One lab command at a time, and a sentence about who holds the lab.

The kernel's file lock decides (it cannot outlive its process); the text in the file says who, what and since when.
"""

import fcntl
import getpass
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.shell import LabError, say


def _describe(holder: dict[str, object]) -> str:
    seconds = int(time.time() - float(str(holder.get("since", time.time()))))
    return (
        f"`{holder.get('command')}` of user {holder.get('user')}, pid {holder.get('pid')}, "
        f"from {holder.get('repo')}, for {seconds} s"
    )


def _read(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def held(path: Path, command: str, repo: Path) -> Iterator[None]:
    """Hold the lab's lock at ``path`` for the length of the block.

    Raises LabError when a living command holds it. A record left by a command that died is taken over with a note.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(path)
            raise LabError(
                f"the lab is busy: {_describe(holder)} holds {path}",
                f"wait for it, or end it with `kill {holder.get('pid')}` and run your command again; "
                "every lab command picks up what another left half done",
            ) from None
        stale = _read(path)
        if stale:
            say(f"taking over the lab's lock: {_describe(stale)} ended without releasing it")
        record = {
            "user": getpass.getuser(),
            "pid": os.getpid(),
            "repo": str(repo),
            "command": command,
            "since": time.time(),
        }
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(record).encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
