# Copyright: sparkmesh contributors
# SPDX-License-Identifier: Apache-2.0
"""Writes what a run cost and what came of it (see module_utils/run_report.py for the counting)."""

from __future__ import annotations

DOCUMENTATION = r"""
name: report
type: aggregate
short_description: Writes a report of every run as JSON and HTML
description:
  - Counts per play the wall seconds, the task rows and the module executions per host, keeps the failures with their
    fixes and what C(set_stats) recorded, and writes C(report.json) and C(report.html) into a folder of their own.
  - Results of tasks with C(no_log) are never written.
  - A report that cannot be written is a warning; it never fails the run.
author:
  - sparkmesh contributors (@sparkmesh)
options:
  directory:
    description: Folder of the reports. A relative path is taken from where the playbook was started.
    type: path
    default: reports
    env:
      - name: SPARKMESH_REPORT_DIR
    ini:
      - section: callback_sparkmesh_report
        key: directory
  keep:
    description: Reports to keep; the oldest are removed.
    type: int
    default: 20
    env:
      - name: SPARKMESH_REPORT_KEEP
    ini:
      - section: callback_sparkmesh_report
        key: keep
requirements:
  - Enable it with C(callbacks_enabled=sparkmesh.cluster.report).
"""

import functools
import json
import time
import typing as t
from collections.abc import Callable
from pathlib import Path

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible_collections.sparkmesh.cluster.plugins.module_utils.run_report import (
    Recorder,
    new_folder,
    notes,
    prune,
    table,
)
from ansible_collections.sparkmesh.cluster.plugins.module_utils.run_report_html import render

if t.TYPE_CHECKING:
    from ansible.executor.stats import AggregateStats
    from ansible.executor.task_result import CallbackTaskResult
    from ansible.playbook import Playbook
    from ansible.playbook.play import Play
    from ansible.playbook.task import Task


def _never_fails[Method: Callable[..., None]](method: Method) -> Method:
    """A fault of the report says so once and ends the reporting, not the run."""

    @functools.wraps(method)
    def guarded(self: CallbackModule, *args: t.Any, **kwargs: t.Any) -> None:
        if self.broken:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.broken = True
            self._display.warning(f"No report of this run: {type(error).__name__}: {error}")

    return t.cast(Method, guarded)


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible ships no types
    """One recorder a run, fed by Ansible's events."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "sparkmesh.cluster.report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.recorder: Recorder | None = None

    @_never_fails
    def v2_playbook_on_start(self, playbook: Playbook) -> None:
        # A second playbook on one command line goes on in the same report.
        if self.recorder is None:
            name = Path(str(playbook._file_name)).name
            self.recorder = Recorder(name, time.monotonic(), check_mode=bool(context.CLIARGS.get("check")))

    @_never_fails
    def v2_playbook_on_play_start(self, play: Play) -> None:
        self._rec.play(str(play.get_name()), time.monotonic())

    @_never_fails
    def v2_playbook_on_task_start(self, task: Task, is_conditional: bool) -> None:
        self._task_start(task)

    @_never_fails
    def v2_playbook_on_handler_task_start(self, task: Task) -> None:
        self._task_start(task)

    @_never_fails
    def v2_runner_on_start(self, host: t.Any, task: Task) -> None:
        self._rec.host(str(task._uuid), str(host), time.monotonic())

    @_never_fails
    def v2_runner_retry(self, result: CallbackTaskResult) -> None:
        self._rec.retry(str(result.task._uuid), _runs_on(result) or result.host.get_name())

    @_never_fails
    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        self._result(result, "changed" if result.is_changed() else "ok")

    @_never_fails
    def v2_runner_on_failed(self, result: CallbackTaskResult, ignore_errors: bool = False) -> None:
        self._result(result, "ignored" if ignore_errors else "failed")

    @_never_fails
    def v2_runner_on_unreachable(self, result: CallbackTaskResult) -> None:
        self._result(result, "unreachable")

    @_never_fails
    def v2_runner_on_skipped(self, result: CallbackTaskResult) -> None:
        self._result(result, "skipped")

    @_never_fails
    def v2_playbook_on_stats(self, stats: AggregateStats) -> None:
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        report = self._rec.data(time.monotonic(), hosts, stats.custom)
        directory = Path(str(self.get_option("directory"))).expanduser().absolute()
        folder = new_folder(directory, self._rec.playbook, self._rec.wall)
        (folder / "report.html").write_text(render(report), encoding="utf-8")
        # Last and by rename: a folder counts as a report once its report.json is there, whole.
        partial = folder / "report.json.partial"
        partial.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.rename(folder / "report.json")
        prune(directory, max(1, int(str(self.get_option("keep")))))
        self._display.banner("REPORT")
        for line in [*table(report), *notes(report), f"report: {folder / 'report.html'}"]:
            self._display.display(line)

    @property
    def _rec(self) -> Recorder:
        if self.recorder is None:
            raise RuntimeError("the run began without its start event")
        return self.recorder

    def _task_start(self, task: Task) -> None:
        hidden = bool(task.no_log)
        action = str(task.resolved_action or task.action)
        self._rec.task(str(task._uuid), str(task.get_name()), action, time.monotonic(), hidden=hidden)
        if hidden and action.rpartition(".")[2] == "set_stats":
            data = task.args.get("data")
            self._rec.hide_stats(data if isinstance(data, dict) else [])

    def _result(self, result: CallbackTaskResult, status: str) -> None:
        uuid, host = str(result.task._uuid), result.host.get_name()
        self._rec.result(uuid, host, status, result.result, time.monotonic(), runs_on=_runs_on(result))


def _runs_on(result: CallbackTaskResult) -> str | None:
    delegated = result.result.get("_ansible_delegated_vars")
    return str(delegated["ansible_delegated_host"]) if delegated and "ansible_delegated_host" in delegated else None
