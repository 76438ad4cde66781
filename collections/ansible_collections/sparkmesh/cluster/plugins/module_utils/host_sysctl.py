"""The sysctl kind of host settings: one file for the next boot, and the live values through /proc/sys."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.host_kinds import Outcome, Site
from ansible_collections.sparkmesh.cluster.plugins.module_utils.journal import JournalError

SYSCTL_FILE = "/etc/sysctl.d/60-sparkmesh.conf"
_HEADER = "# Written by sparkmesh (host_settings); other lines of this file are replaced at the next run.\n"
_REFUSED = {errno.EPERM, errno.EACCES, errno.EROFS}


class SysctlKind:
    """``{key, value}``. In a container only ``net.*`` is the container's own; all else belongs to the whole machine."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def settle(self, settings: Sequence[Mapping[str, Any]], state: str) -> list[Outcome]:
        file = self._read_file()
        wanted_file = dict(file)
        outcomes = []
        for setting in settings:
            key, value = str(setting["key"]), _plain(str(setting["value"]))
            try:
                if state == "reverted":
                    outcome = self._revert(setting["name"], key)
                    if outcome.status != "failed":
                        wanted_file.pop(key, None)
                else:
                    outcome = self._apply(setting["name"], key, value, state)
                    if outcome.status not in ("failed", "not_applicable"):
                        wanted_file[key] = value
            except (OSError, JournalError) as problem:
                outcome = Outcome(setting["name"], "failed", wanted=value, reason=f"{key}: {problem}")
            if outcome.status == "ok" and file.get(key) != wanted_file.get(key):
                outcome.status = "would_change" if self._site.dry or state == "checked" else "changed"
                outcome.reason = f"live value is right, {SYSCTL_FILE} is not"
            outcomes.append(outcome)
        if wanted_file != file:
            self._write_file(wanted_file, state)
        return outcomes

    def _apply(self, name: str, key: str, value: str, state: str) -> Outcome:
        outcome = Outcome(name, "ok", wanted=value)
        if self._site.container and not key.startswith("net."):
            outcome.status = "not_applicable"
            outcome.reason = f"{key} belongs to the kernel of the machine, which this {self._site.container} shares"
            return outcome
        live = self._live(key)
        if live is None:
            here = "this container does not have it" if self._site.container else "this kernel does not know it"
            outcome.status = "not_applicable" if self._site.container else "failed"
            outcome.seen, outcome.reason = "absent", f"{key}: {here}"
            return outcome
        outcome.seen = live
        if live == value:
            return outcome
        # Asked first, so that a check tells what a run would find; the kernel may still refuse the write itself.
        if self._site.container and not os.access(self._proc(key), os.W_OK):
            outcome.status = "not_applicable"
            outcome.reason = f"this {self._site.container} may not write {key}: it belongs to the machine"
            return outcome
        self._site.show_change(key, live, value)
        if state == "checked" or self._site.dry:
            outcome.status = "would_change"
            return outcome
        self._site.journal.note("sysctl", key, live)
        self._set(outcome, key, value)
        if outcome.status != "changed":
            self._site.journal.forget("sysctl", key)
        return outcome

    def _revert(self, name: str, key: str) -> Outcome:
        original = self._site.journal.noted("sysctl", key)
        live = self._live(key)
        outcome = Outcome(name, "ok", seen=live or "absent", wanted=original or "as it is")
        if original is None or live is None:
            return outcome
        if live != original:
            self._site.show_change(key, live, original)
            if self._site.dry:
                outcome.status = "would_change"
                return outcome
            self._set(outcome, key, original)
        if outcome.status != "failed" and not self._site.dry:
            self._site.journal.forget("sysctl", key)
        return outcome

    def _set(self, outcome: Outcome, key: str, value: str) -> None:
        try:
            self._proc(key).write_text(f"{value}\n", encoding="ascii")
        except OSError as problem:
            refused = self._site.container is not None and problem.errno in _REFUSED
            outcome.status = "not_applicable" if refused else "failed"
            outcome.reason = f"the kernel refuses {key} = {value}: {problem.strerror}"
            return
        now = self._live(key)
        outcome.status = "changed" if now == value else "failed"
        if now != value:
            outcome.reason = f"{key} took {value} without a word but reads {now}"

    def _live(self, key: str) -> str | None:
        try:
            return _plain(self._proc(key).read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    def _proc(self, key: str) -> Path:
        # As sysctl(8): a key with slashes may carry dots in an interface name.
        return self._site.path("/proc/sys/" + (key if "/" in key else key.replace(".", "/")))

    def _read_file(self) -> dict[str, str]:
        path = self._site.path(SYSCTL_FILE)
        if not path.exists():
            return {}
        pairs = (line.split("=", 1) for line in path.read_text(encoding="utf-8").splitlines() if "=" in line)
        return {key.strip(): _plain(value) for key, value in pairs if not key.lstrip().startswith(("#", ";"))}

    def _write_file(self, wanted: Mapping[str, str], state: str) -> None:
        path = self._site.path(SYSCTL_FILE)
        before = path.read_bytes() if path.exists() else None
        after = (_HEADER + "".join(f"{key} = {value}\n" for key, value in sorted(wanted.items()))).encode()
        restore = state == "reverted" and not wanted
        self._site.show(SYSCTL_FILE, before, self._site.journal.original(SYSCTL_FILE) if restore else after)
        if self._site.dry or state == "checked":
            return
        if restore and SYSCTL_FILE in self._site.journal.kept:
            self._site.journal.restore(SYSCTL_FILE)
            return
        self._site.journal.keep(SYSCTL_FILE)
        self._site.write(SYSCTL_FILE, after, 0o644)


def _plain(value: str) -> str:
    """The kernel separates several numbers by tabs, people by spaces."""
    return " ".join(value.split())
