# Copyright: sparkmesh contributors
# SPDX-License-Identifier: Apache-2.0
"""What one run of a playbook cost and what came of it, counted from its events.

The report callback, the ``spark`` command, the benchmark and the tests all count with this file, so a budget means
the same thing everywhere. Plain Python: nothing of Ansible is imported.

* a **row** is one task that started in one play (skipped tasks are rows: they cost time too);
* a **trip** is one execution of a module on a host: every loop item and every retry is one, a skipped task is none,
  and tasks whose action never leaves the controller (assert, debug, set_fact, include…) are none.
  A delegated task is a trip to the host that it was delegated to. An action such as ``template`` that talks to the
  host more than once is still one trip.

Times are seconds of wall clock, rounded to milliseconds.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1

#: ansible.builtin actions that run on the controller alone.
CONTROLLER_ACTIONS = frozenset(
    {
        *("add_host", "assert", "debug", "fail", "group_by", "import_playbook", "import_role", "import_tasks"),
        *("include_role", "include_tasks", "include_vars", "meta", "pause", "set_fact", "set_stats"),
        "validate_argument_spec",
    }
)

#: Statuses of one host in one task, the worst first.
STATUSES = ("unreachable", "failed", "ignored", "changed", "ok", "skipped")

_HIDDEN = "hidden (no_log)"
_TEXT_LIMIT = 4000
_ACTIONS_LIMIT = 50


def is_controller_action(action: str) -> bool:
    """True when a task with this action (short or fully qualified) makes no trip to the host."""
    collection, _, name = action.rpartition(".")
    return name in CONTROLLER_ACTIONS and collection in ("", "ansible.builtin", "ansible.legacy")


def trips_of(action: str, result: Mapping[str, Any], status: str) -> int:
    """Module executions that one result stands for; an unreachable host counts as one attempt."""
    if status == "skipped" or is_controller_action(action):
        return 0
    items = result.get("results")
    # A looped task is told by items that carry loop data: modules may return a `results` list of their own.
    if isinstance(items, list) and any(_is_loop_item(item) for item in items):
        return sum(1 for item in items if not (isinstance(item, Mapping) and _skipped(item)))
    return 1


def _is_loop_item(item: Any) -> bool:
    return isinstance(item, Mapping) and "ansible_loop_var" in item


def _skipped(item: Mapping[str, Any]) -> bool:
    # Callbacks see loop items without their `skipped` and `failed` marks since ansible-core 2.21.
    return bool(item.get("skipped")) or "skip_reason" in item


def failure_of(result: Mapping[str, Any], status: str = "failed") -> dict[str, str]:
    """``{"message", "fix"}`` of a failed result, in the words of whatever failed.

    The fix is the result's own ``fix``, or those of its failing findings, links or settings.
    """
    if "censored" in result:
        return {"message": _HIDDEN, "fix": ""}
    if status == "unreachable":
        return {
            "message": _text(result.get("msg")) or "no answer over ssh",
            "fix": _text(result.get("fix"))
            or "Check power, management network and ssh login of this host, then run again: a re-run is safe.",
        }
    message = _message(result)
    fixes = [_text(result.get("fix"))]
    for key in ("findings", "links", "results"):
        entries = result.get(key)
        if not isinstance(entries, list):
            continue
        for entry in entries:
            if isinstance(entry, Mapping) and _entry_failed(entry):
                fixes.append(_text(entry.get("fix")))
                if _is_loop_item(entry):
                    message = _join([message, f"{_text(entry.get('item'))}: {_message(entry)}"])
    return {"message": _clip(message) or "no message", "fix": _clip(_join(fixes))}


def _entry_failed(entry: Mapping[str, Any]) -> bool:
    marked = entry.get("status") in ("fail", "failed") or entry.get("ok") is False or bool(entry.get("failed"))
    return marked or (_is_loop_item(entry) and "exception" in entry)


def _message(result: Mapping[str, Any]) -> str:
    text = _text(result.get("msg"))
    if "rc" in result and result.get("rc") not in (0, None):
        errors = (_text(result.get("stderr")) or _text(result.get("stdout"))).strip().splitlines()
        text = _join([f"{text} (rc {result['rc']})", errors[-1] if errors else ""])
    return text


def _join(parts: Iterable[str]) -> str:
    return "\n".join(dict.fromkeys(part for part in parts if part))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return json.dumps(value, default=str)


def _clip(text: str) -> str:
    return text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + " […]"


@dataclass
class _Task:
    name: str
    action: str
    started: float
    hidden: bool
    ended: float = 0.0
    trips: dict[str, int] = field(default_factory=dict)
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "action": self.action,
            "seconds": round(max(0.0, self.ended - self.started), 3),
            "trips": self.trips,
            "hosts": self.hosts,
        }


@dataclass
class _Play:
    name: str
    started: float
    ended: float = 0.0
    tasks: dict[str, _Task] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        tasks = [task.data() for task in self.tasks.values()]
        return {
            "name": self.name,
            "seconds": round(max(0.0, self.ended - self.started), 3),
            "rows": len(tasks),
            "trips": sum_trips(task["trips"] for task in tasks),
            "tasks": tasks,
        }


def mark_rescued(failures: Iterable[dict[str, str]], hosts: Mapping[str, Mapping[str, int]]) -> None:
    """Sets ``status`` of each failure (in order of time) to failed or rescued, from Ansible's counts per host.

    A rescue comes after the failure and a failure that is not rescued ends the host's run, so the failures that count
    are each host's last ones.
    """
    left = {host: row.get("failures", 0) + row.get("unreachable", 0) for host, row in hosts.items()}
    for failure in reversed(list(failures)):
        counts = left.get(failure["host"], 0) > 0
        left[failure["host"]] = left.get(failure["host"], 0) - 1
        failure["status"] = "failed" if counts else "rescued"


def sum_trips(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Trips per host over several parts."""
    total: dict[str, int] = {}
    for part in parts:
        for host, trips in part.items():
            total[host] = total.get(host, 0) + trips
    return total


class Recorder:
    """Collects the events of one run; ``data()`` is the report. Times come from the caller's monotonic clock."""

    def __init__(self, playbook: str, now: float, *, check_mode: bool = False, wall: float | None = None) -> None:
        self.playbook = playbook
        self.check_mode = check_mode
        self.wall = time.time() if wall is None else wall
        self.started = now
        self.plays: list[_Play] = []
        self.failures: list[dict[str, str]] = []
        self._hidden_stats: set[str] = set()

    def play(self, name: str, now: float) -> None:
        self._close(now)
        self.plays.append(_Play(name, now))

    def task(self, uuid: str, name: str, action: str, now: float, *, hidden: bool = False) -> None:
        """A task starts (again, for the same uuid, when hosts run apart)."""
        if not self.plays:
            self.play("(no play)", now)
        if action.rpartition(".")[2] != "meta":
            self.plays[-1].tasks.setdefault(uuid, _Task(name, action, now, hidden))

    def host(self, uuid: str, host: str, now: float) -> None:
        task = self._task(uuid)
        if task:
            task.begun[host] = now

    def retry(self, uuid: str, host: str) -> None:
        task = self._task(uuid)
        if task and not is_controller_action(task.action):
            task.trips[host] = task.trips.get(host, 0) + 1

    def hide_stats(self, names: Iterable[str]) -> None:
        """Custom stats that a no_log task set: never written."""
        self._hidden_stats.update(names)

    def result(
        self, uuid: str, host: str, status: str, result: Mapping[str, Any], now: float, *, runs_on: str | None = None
    ) -> None:
        """One host finished a task. ``status`` is one of STATUSES; ``runs_on`` names a delegate."""
        task = self._task(uuid)
        if task is None:
            return
        task.ended = max(task.ended, now)
        hidden = task.hidden or bool(result.get("_ansible_no_log")) or "censored" in result
        row: dict[str, Any] = {"status": status, "seconds": round(now - task.begun.get(host, task.started), 3)}
        if status in ("failed", "unreachable", "ignored"):
            failure = {"message": _HIDDEN, "fix": ""} if hidden else failure_of(result, status)
            row["message"] = failure["message"]
            if status != "ignored":
                place = {"host": host, "play": self.plays[-1].name, "task": task.name}
                self.failures.append({**place, **failure})
        elif status == "changed" and not hidden:
            actions = result.get("actions")
            if isinstance(actions, list):
                row["actions"] = [_clip(_text(action)) for action in actions[:_ACTIONS_LIMIT]]
        task.hosts[host] = row
        trips = trips_of(task.action, result, status)
        if trips:
            where = runs_on or host
            task.trips[where] = task.trips.get(where, 0) + trips

    def data(
        self, now: float, hosts: Mapping[str, Mapping[str, int]], custom: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The report. ``hosts``: Ansible's own counts per host; ``custom``: ``{host or "_run": {stat: value}}``."""
        self._close(now)
        plays = [play.data() for play in self.plays]
        bad = {host for host, row in hosts.items() if row.get("failures") or row.get("unreachable")}
        mark_rescued(self.failures, hosts)
        return {
            "schema": SCHEMA,
            "playbook": self.playbook,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.wall)),
            "check_mode": self.check_mode,
            "ok": bool(hosts) and not bad,
            "seconds": round(now - self.started, 3),
            "rows": sum(play["rows"] for play in plays),
            "trips": sum_trips(play["trips"] for play in plays),
            "changed": sum(row.get("changed", 0) for row in hosts.values()),
            "hosts": {host: dict(row) for host, row in hosts.items()},
            "failures": self.failures,
            "plays": plays,
            "custom": {
                host: {name: _plain(value) for name, value in values.items() if name not in self._hidden_stats}
                for host, values in custom.items()
            },
        }

    def _task(self, uuid: str) -> _Task | None:
        return self.plays[-1].tasks.get(uuid) if self.plays else None

    def _close(self, now: float) -> None:
        if self.plays and not self.plays[-1].ended:
            self.plays[-1].ended = now


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def table(report: Mapping[str, Any]) -> list[str]:
    """The report as lines for a terminal: one per play, then the sum."""
    names = [play["name"] for play in report["plays"]]
    width = min(48, max([len(name) for name in names] + [len("total")]))
    lines = [f"{'play':<{width}}  {'seconds':>8}  {'rows':>4}  trips per host"]
    for name, part in [*zip(names, report["plays"], strict=True), ("total", report)]:
        trips = " ".join(f"{host} {count}" for host, count in sorted(part["trips"].items())) or "-"
        lines.append(f"{name[:width]:<{width}}  {part['seconds']:>8.1f}  {part['rows']:>4}  {trips}")
    return lines


def notes(report: Mapping[str, Any]) -> list[str]:
    """What ``set_stats`` recorded for the whole run and fits on a line: the answer of the served model, say."""
    recorded = report["custom"].get("_run", {})
    short = {name: value for name, value in recorded.items() if isinstance(value, str | int | float)}
    return [f"{name.replace('_', ' ')}: {value}" for name, value in short.items()]


def report_folders(directory: Path) -> list[Path]:
    """Finished reports, oldest first. Only folders that hold a report.json are ours."""
    return sorted(path.parent for path in directory.glob("[0-9]*-*/report.json"))


def newest_report(directory: Path) -> Path | None:
    """The newest report.json under ``directory``."""
    folders = report_folders(directory)
    return folders[-1] / "report.json" if folders else None


def new_folder(directory: Path, playbook: str, wall: float) -> Path:
    """Makes ``<directory>/<YYYYmmdd-HHMMSS>-<playbook>``; a second run in the same second gets ``.1`` and so on."""
    stem = time.strftime("%Y%m%d-%H%M%S", time.localtime(wall))
    name = "".join(char if char.isalnum() or char in "-_" else "_" for char in Path(playbook).stem) or "playbook"
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(1000):
        folder = directory / (f"{stem}.{number:03d}-{name}" if number else f"{stem}-{name}")
        try:
            folder.mkdir(mode=0o750)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"{directory}: 1000 reports of {stem}-{name} exist already, wanted a new one; remove some")


def prune(directory: Path, keep: int) -> None:
    """Removes the oldest reports so that ``keep`` remain."""
    folders = report_folders(directory)
    for folder in folders[: max(0, len(folders) - keep)]:
        shutil.rmtree(folder)
