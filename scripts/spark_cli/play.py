"""Runs one playbook through ansible-runner: progress, Ctrl-C, summary."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import ansible_runner
from ansible_collections.sparkmesh.cluster.plugins.module_utils.run_report import newest_report

from spark_cli.progress import INTERRUPTED, Progress
from spark_cli.verbs import Request

#: Runs whose artifacts (all events, the full output) are kept under .spark/artifacts.
KEEP_ARTIFACTS = 10
#: Seconds that Ansible gets after Ctrl-C to end its tasks before it is killed.
GRACE_S = 15.0


class Interrupt:
    """The first Ctrl-C asks ansible-playbook to stop; a second one, or GRACE_S, makes ansible-runner kill it.

    An instance is ansible-runner's cancel callback: called about once a second, True means kill.
    """

    def __init__(self, out: TextIO, children: Callable[[], list[int]] | None = None) -> None:
        self.count = 0
        self._out = out
        self._asked: float | None = None
        self._children = children or child_groups

    def __call__(self) -> bool:
        if not self.count:
            return False
        if self._asked is None:
            self._asked = time.monotonic()
            groups = self._children()
            print("stopping: waiting for Ansible to end its tasks (again Ctrl-C: at once)", file=self._out, flush=True)
            for group in groups:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGINT)
            return not groups
        return self.count > 1 or time.monotonic() - self._asked > GRACE_S

    def _note(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Takes SIGINT and SIGTERM while the block runs."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def child_groups() -> list[int]:
    """Process groups led by children of this process: Ansible runs in a session of its own, out of reach of Ctrl-C.

    Read from /proc; empty where there is none, and then the run is killed instead of asked.
    """
    groups = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold blanks: the fields wanted come after it (state, parent, group).
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            if int(fields[1]) == os.getpid() and int(fields[2]) == pid:
                groups.append(pid)
    return groups


def run(request: Request, root: Path, out: TextIO) -> tuple[int, dict[str, Any]]:
    """Runs the verb's playbook. Returns ansible-playbook's exit status (130 after Ctrl-C) and the summary as data."""
    assert request.verb.playbook is not None
    work = root / ".spark"
    work.mkdir(mode=0o700, exist_ok=True)
    reports = Path(os.environ.get("SPARKMESH_REPORT_DIR") or root / "reports").absolute()
    before = newest_report(reports)
    progress, interrupt = Progress(out), Interrupt(out)
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(progress, done), daemon=True)
    with interrupt.watching():
        beat.start()
        try:
            runner = ansible_runner.run(
                private_data_dir=str(work),
                project_dir=str(root),
                playbook=request.verb.playbook,
                inventory=str(request.inventory),
                cmdline=request.cmdline or None,
                ident=time.strftime("%Y%m%d-%H%M%S-") + f"{os.getpid()}-{request.verb.name}",
                rotate_artifacts=KEEP_ARTIFACTS,
                event_handler=progress.event,
                cancel_callback=interrupt,
                quiet=True,
                suppress_env_files=True,
                settings={"pexpect_timeout": 1},
                envvars=_environment(root, reports),
            )
        finally:
            done.set()
            beat.join()
    rc = INTERRUPTED if interrupt.count else int(runner.rc)
    for line in progress.summary(rc):
        print(line, file=out)
    if interrupt.count:
        print("interrupted: what was done so far stays, and running the same verb again is safe", file=out)
    report = newest_report(reports)
    report = report if report != before else None
    # From the report, which leaves out what no_log tasks set; the event stream does not.
    custom = json.loads(report.read_text(encoding="utf-8"))["custom"].get("_run", {}) if report else {}
    for name, value in custom.items():
        print(f"{name}: {_short(value)}", file=out)
    if report:
        print(f"report: {report.with_suffix('.html')}", file=out)
    return rc, {
        "schema": 1,
        "verb": request.verb.name,
        "playbook": request.verb.playbook,
        "inventory": str(request.inventory),
        "check_mode": request.check,
        "rc": rc,
        "ok": rc == 0,
        "interrupted": bool(interrupt.count),
        "seconds": round(progress.clock() - progress.began, 3),
        "plays": progress.plays,
        "hosts": progress.hosts,
        "failures": progress.failures,
        "messages": [] if rc == 0 or progress.failures else list(progress.messages),
        "custom": custom,
        "report": str(report) if report else None,
        "artifacts": str(runner.config.artifact_dir),
    }


def _environment(root: Path, reports: Path) -> dict[str, str]:
    return {
        "ANSIBLE_CONFIG": os.environ.get("ANSIBLE_CONFIG") or str(root / "ansible.cfg"),
        # ansible-runner turns host key checking off unless told otherwise.
        "ANSIBLE_HOST_KEY_CHECKING": os.environ.get("ANSIBLE_HOST_KEY_CHECKING", "True"),
        "SPARKMESH_REPORT_DIR": str(reports),
        # The paths that this command itself needs are none of Ansible's business.
        "PYTHONPATH": "",
    }


def _short(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(entry, dict) and "status" in entry for entry in value):
        return ", ".join(f"{count} {status}" for status, count in Counter(str(e["status"]) for e in value).items())
    text = " ".join((value if isinstance(value, str) else json.dumps(value)).split())
    return text if len(text) <= 300 else text[:300] + " […]"


def _beat(progress: Progress, done: threading.Event) -> None:
    while not done.wait(1.0):
        progress.tick()
