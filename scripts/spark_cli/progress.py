"""Live progress of a run, from the events of ansible-runner."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from ansible_collections.sparkmesh.cluster.plugins.module_utils.run_report import failure_of, mark_rescued

#: A task that changed nothing is worth a line only when it took longer than this, in seconds.
SLOW_S = 3.0
#: Seconds between two lines about a task that is still running.
HEARTBEAT_S = 10.0

#: Exit status of a run that a person ended with Ctrl-C.
INTERRUPTED = 130

_LOUD = ("ignored", "changed")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RESULTS = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
}
_STARTS = ("playbook_on_task_start", "playbook_on_handler_task_start", "playbook_on_cleanup_task_start")
_COLOURS = {"failed": "31", "unreachable": "31", "ignored": "33", "changed": "33", "play": "1"}


@dataclass
class _Running:
    name: str
    started: float
    waiting: set[str] = field(default_factory=set)
    outcomes: dict[str, list[str]] = field(default_factory=dict)


class Progress:
    """Prints to ``out`` while a run goes on and keeps what the summary needs. Safe to call from two threads."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.out = out
        self.clock = clock
        self.began = clock()
        self.plays: list[dict[str, Any]] = []
        self.failures: list[dict[str, str]] = []
        self.hosts: dict[str, dict[str, int]] = {}
        #: Ansible's own words that belong to no task: all there is when a run fails before its first play.
        self.messages: deque[str] = deque(maxlen=40)
        self._task: _Running | None = None
        self._task_uuid = ""
        self._spoke = self.began
        self._lock = threading.Lock()
        self._colour = out.isatty()

    def event(self, event: Mapping[str, Any]) -> bool:
        """The event handler of ansible-runner. True: keep the event file."""
        kind = str(event.get("event", ""))
        data = event.get("event_data") or {}
        with self._lock:
            now = self.clock()
            if kind == "playbook_on_play_start":
                self._play(str(data.get("name") or data.get("play") or "play"), now)
            elif kind in _STARTS:
                self._start(str(data.get("task_uuid", "")), str(data.get("task", "")), data, now)
            elif kind == "runner_on_start" and self._task:
                self._task.waiting.add(str(data.get("host")))
            elif kind in _RESULTS:
                self._result(_RESULTS[kind], data, now)
            elif kind == "playbook_on_stats":
                self._stats(data, now)
            elif kind in ("verbose", "error", "warning", "deprecated"):
                self._message(kind, str(event.get("stdout", "")), now)
        return True

    def tick(self) -> None:
        """Called often; speaks when a task has been silent for HEARTBEAT_S."""
        with self._lock:
            now, task = self.clock(), self._task
            if task is None or not task.waiting or now - self._spoke < HEARTBEAT_S:
                return
            hosts = ", ".join(sorted(task.waiting))
            self._line(f"  … {task.name}: {now - task.started:.0f} s so far, still in it: {hosts}", now)

    def summary(self, rc: int) -> list[str]:
        """The closing lines: failures first."""
        with self._lock:
            now = self.clock()
            self._end_play(now)
            lines = []
            for failure in self.failures:
                if failure["status"] == "failed":
                    lines += _failure_lines(failure)
            rescued = [f for f in self.failures if f["status"] == "rescued"]
            lines += [f"recovered: {f['host']}: {f['task']}: {f['message'].splitlines()[0]}" for f in rescued]
            if rc and not self.failures:
                lines += self.messages
            width = max([len(play["name"]) for play in self.plays], default=0)
            lines += [f"  {play['name']:<{width}}  {play['seconds']:7.1f} s" for play in self.plays]
            counts = ", ".join(f"{host} {_counts(row)}" for host, row in self.hosts.items())
            verdict = {0: "ok", INTERRUPTED: "INTERRUPTED"}.get(rc, f"FAILED (rc {rc})")
            lines.append(f"{verdict} in {now - self.began:.1f} s{': ' + counts if counts else ''}")
            return lines

    def _play(self, name: str, now: float) -> None:
        self._finish_task(now)
        self._end_play(now)
        self.plays.append({"name": name, "seconds": 0.0, "_began": now})
        self._line(self._paint("play", f"{name}"), now)

    def _end_play(self, now: float) -> None:
        if self.plays and "_began" in self.plays[-1]:
            self.plays[-1]["seconds"] = round(now - self.plays[-1].pop("_began"), 3)

    def _start(self, uuid: str, name: str, data: Mapping[str, Any], now: float) -> None:
        if uuid and uuid == self._task_uuid:
            return
        self._finish_task(now)
        role = str(data.get("role") or "")
        self._task_uuid = uuid
        self._task = _Running(f"{role} : {name}" if role and not name.startswith(f"{role} :") else name, now)

    def _result(self, status: str, data: Mapping[str, Any], now: float) -> None:
        result = data.get("res")
        result = result if isinstance(result, Mapping) else {}
        host, name = str(data.get("host")), self._task.name if self._task else str(data.get("task", ""))
        if status == "ok" and result.get("changed"):
            status = "changed"
        if status == "failed" and data.get("ignore_errors"):
            status = "ignored"
        if status in ("failed", "unreachable"):
            play = self.plays[-1]["name"] if self.plays else ""
            failure = {"host": host, "play": play, "task": name, **failure_of(result, status), "status": "failed"}
            self.failures.append(failure)
            first = failure["message"].splitlines()[0]
            self._line(self._paint(status, f"  {status}: {host}: {name}: {first}"), now)
        if self._task:
            self._task.waiting.discard(host)
            self._task.outcomes.setdefault(status, []).append(host)

    def _finish_task(self, now: float) -> None:
        task, self._task, self._task_uuid = self._task, None, ""
        if task is None or not task.outcomes:
            return
        loud = [status for status in _LOUD if status in task.outcomes]
        took = now - task.started
        # Failures were told when they came.
        if not loud and (took < SLOW_S or not task.outcomes.get("ok")):
            return
        parts = []
        for status in (*_LOUD, "ok"):
            if status in task.outcomes:
                parts.append(self._paint(status, f"{status} {' '.join(sorted(task.outcomes[status]))}"))
        self._line(f"  {task.name} ({took:.1f} s): {', '.join(parts)}", now)

    def _stats(self, data: Mapping[str, Any], now: float) -> None:
        self._finish_task(now)
        self._end_play(now)
        # Runner says "dark" for what everybody else calls unreachable.
        names = {"ok": "ok", "changed": "changed", "failures": "failures", "dark": "unreachable", "rescued": "rescued"}
        for host in sorted(data.get("processed") or {}):
            self.hosts[host] = {name: int((data.get(key) or {}).get(host, 0)) for key, name in names.items()}
        mark_rescued(self.failures, self.hosts)

    def _message(self, kind: str, text: str, now: float) -> None:
        for line in _ESCAPES.sub("", text).splitlines():
            if not line.strip():
                continue
            self.messages.append(line)
            if kind in ("warning", "deprecated"):
                self._line(f"  {line}", now)

    def _paint(self, status: str, text: str) -> str:
        return f"\033[{_COLOURS[status]}m{text}\033[0m" if self._colour and status in _COLOURS else text

    def _line(self, text: str, now: float) -> None:
        self._spoke = now
        print(f"[{now - self.began:6.1f}s] {text}", file=self.out, flush=True)


def _failure_lines(failure: Mapping[str, str]) -> list[str]:
    first, *rest = failure["message"].splitlines() or ["no message"]
    lines = [f"FAILED {failure['host']}: {failure['task']}", f"  message: {first}"]
    lines += [f"           {line}" for line in rest]
    if failure["fix"]:
        first, *rest = failure["fix"].splitlines()
        lines += [f"  fix:     {first}", *(f"           {line}" for line in rest)]
    return lines


def _counts(row: Mapping[str, int]) -> str:
    shown = [f"{name}={row[name]}" for name in ("changed", "failures", "unreachable", "rescued") if row.get(name)]
    return " ".join([f"ok={row.get('ok', 0)}", *shown])
