"""Bringing one node's fabric links into force with netplan, and back again.

The order is: originals into the journal, files, ``netplan generate``, ``netplan apply``, verify; on any failure the
files of before come back byte for byte and are applied again.
"""

from __future__ import annotations

import difflib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils import fabric_live, netplan
from ansible_collections.sparkmesh.cluster.plugins.module_utils.journal import Journal
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import (
    CommandFailed,
    Reader,
    Runner,
    run,
    write_file,
)

PLAN_FILE = "/etc/sparkmesh/fabric.json"
_APPLY_SECONDS = 120.0


class FabricError(Exception):
    """The links cannot or must not be brought into force; the text names each reason with its fix."""


@dataclass
class Fabric:
    """One node's links (an entry of the plan's ``nodes``) and what stands between them and being in force."""

    plan_node: Mapping[str, Any]
    mtu: int
    reader: Reader
    journal: Journal
    runner: Runner = run
    renderer: str | None = None
    adopt_foreign: bool = False
    management_address: str | None = None
    verify_timeout: float = 20.0
    actions: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.links = list(self.plan_node["links"])
        self.wanted = {str(link["interface"]): f"{link['address']}/{link['prefix']}" for link in self.links}
        self._before: dict[str, bytes | None] = {}
        self._after: dict[str, bytes | None] = {}
        self._faults: list[str] = []

    def prepare(self) -> None:
        """Work out the files; raises ``FabricError`` with every reason why these links must not be touched."""
        now = fabric_live.ports(self.runner)
        guarded = fabric_live.guarded_interfaces(self.reader, now, self.management_address)
        ours = set(self.wanted) | interfaces_of(self._bytes(netplan.FABRIC_FILE))
        reasons = fabric_live.refusals(self.links, self.reader, now, guarded, ours)
        networks = netplan.read_all(self.reader.root)
        foreign, more = self._adoptable(networks)
        reasons += more
        if reasons:
            raise FabricError("; ".join(reasons))
        renderer = self.renderer or netplan.found_renderer(networks)
        self._after = {netplan.FABRIC_FILE: netplan.render(self.links, self.mtu, renderer).encode()}
        for path, keys in foreign.items():
            text = self.reader.path(path).read_text(encoding="utf-8")
            self._after[path] = netplan.without(text, path, keys).encode()
        self._before = {path: self._bytes(path) for path in self._after}
        self._faults, self.waiting = fabric_live.deviations(self.wanted, self.mtu, now)

    def disruptions(self) -> list[str]:
        """What would make the links go down for a moment; empty when all is in force."""
        found = []
        for path in self._changed_files():
            verb = "write" if path == netplan.FABRIC_FILE else "take the fabric interfaces out of"
            found.append(f"{verb} {path}")
        if self._mode_is_wrong():
            found.append(f"set the mode of {netplan.FABRIC_FILE} to 0600")
        return found + [f"netplan apply: {fault}" for fault in self._faults]

    def diffs(self) -> list[dict[str, str]]:
        """Whole files before and after, for Ansible's diff."""
        parts = []
        for path in [*self._changed_files(), *([PLAN_FILE] if self.plan_differs() else [])]:
            before, after = (
                (self._bytes(PLAN_FILE), self._plan_bytes()) if path == PLAN_FILE
                else (self._before[path], self._after[path])
            )  # fmt: skip
            parts.append(
                {
                    "before_header": path if before is not None else f"{path} (absent)",
                    "after_header": path if after is not None else f"{path} (absent)",
                    "before": (before or b"").decode(errors="replace"),
                    "after": (after or b"").decode(errors="replace"),
                }
            )
        return parts

    def diff_text(self) -> str:
        """The same as a unified diff, for an error message."""
        lines: list[str] = []
        for part in self.diffs():
            lines += difflib.unified_diff(
                part["before"].splitlines(), part["after"].splitlines(),
                part["before_header"], part["after_header"], lineterm="",
            )  # fmt: skip
        return "\n".join(lines)

    def plan_differs(self) -> bool:
        """Whether the recorded plan entry is another one."""
        return self._bytes(PLAN_FILE) != self._plan_bytes()

    def record_plan(self) -> None:
        """Write the plan entry in force for the rank and for the next diff."""
        self.journal.keep(PLAN_FILE)
        self._write(PLAN_FILE, self._plan_bytes(), 0o644)
        self.actions.append(f"recorded the plan entry in {PLAN_FILE}")

    def apply(self) -> None:
        """Bring the links into force; raises ``FabricError`` after everything is as before again."""
        touched = set(self.wanted) | self._ours_before()
        now = fabric_live.ports(self.runner)
        for name in touched & set(now):
            self.journal.note("mtu", name, now[name].mtu)
        for path in self._after:
            self.journal.keep(path)
        modes = {path: self._mode(path) for path in self._before}
        done = self.disruptions()
        try:
            for path, content in self._after.items():
                self._write(path, content, 0o600)
            self._netplan()
            wanted = {name: {self.wanted[name]} if name in self.wanted else set() for name in touched}
            stale = fabric_live.correct(wanted, {}, self.runner)
            keep = self._management(now)
            faults, self.waiting = fabric_live.await_plan(
                self.wanted, self.mtu, keep, runner=self.runner, timeout=self.verify_timeout
            )
            if faults:
                raise FabricError(
                    f"{len(faults)} faults {self.verify_timeout:g} s after netplan apply: {'; '.join(faults)}"
                )
        except (FabricError, CommandFailed, OSError) as problem:
            raise FabricError(f"{problem}. {self._roll_back(modes, now, touched)}") from problem
        self.actions += [*done, *stale, *(f"note: {text}" for text in self.waiting)]

    def _roll_back(self, modes: Mapping[str, int], then: Mapping[str, fabric_live.Port], touched: set[str]) -> str:
        try:
            for path, content in self._before.items():
                self._write(path, content, modes.get(path, 0o600))
                if self._bytes(path) != content:
                    raise FabricError(f"{path} does not read as it was")
            self._netplan()
            back = touched & set(then)
            addresses = {name: then[name].addresses for name in back}
            fabric_live.correct(addresses, {name: then[name].mtu for name in back}, self.runner, add=True)
            now = fabric_live.ports(self.runner)
            wrong = [name for name in sorted(back) if name not in now or now[name].addresses != then[name].addresses]
        except (FabricError, CommandFailed, OSError) as problem:
            return (
                f"ROLLING BACK FAILED TOO: {problem}. Originals are in /var/lib/sparkmesh/backup; put them "
                "back and run netplan apply"
            )
        files = ", ".join(sorted(self._before))
        proved = f"rolled back: {files} are byte for byte as before and applied again"
        if wrong:
            return f"{proved}, but {', '.join(wrong)} did not get back the addresses of before: look at `ip address`"
        return f"{proved}, addresses and MTUs are those of before. Mend the cause and run again"

    def _adoptable(self, networks: Mapping[str, dict[str, Any]]) -> tuple[dict[str, list[str]], list[str]]:
        names = list(self.wanted)
        macs = {name: self.reader.text(f"/sys/class/net/{name}/address", absent_ok=True) or "" for name in names}
        drivers = {name: self.reader.link(f"/sys/class/net/{name}/device/driver") or "" for name in names}
        take: dict[str, list[str]] = {}
        reasons = []
        for claim in netplan.claims_of(networks, names, macs, drivers):
            in_etc = claim.path.startswith("/etc/")
            if claim.exclusive and in_etc and self.adopt_foreign:
                take.setdefault(claim.path, []).append(claim.key)
            elif claim.exclusive and in_etc:
                reasons.append(
                    f"{claim.text} and merges with ours; set fabric_adopt_foreign: true (adopt_foreign) to take it "
                    "out, with a byte-exact backup, or remove it by hand"
                )
            else:
                reasons.append(f"{claim.text}, and not alone or not below /etc; take the interface out by hand")
        return take, reasons

    def _management(self, then: Mapping[str, fabric_live.Port]) -> dict[str, frozenset[str]]:
        guarded = fabric_live.guarded_interfaces(self.reader, then, self.management_address)
        return {name: then[name].addresses for name in guarded if name in then}

    def _netplan(self) -> None:
        self.runner(["netplan", "generate"], timeout=_APPLY_SECONDS)
        self.runner(["netplan", "apply"], timeout=_APPLY_SECONDS)

    def _changed_files(self) -> list[str]:
        return [path for path in self._after if self._after[path] != self._before[path]]

    def _ours_before(self) -> set[str]:
        return interfaces_of(self._before.get(netplan.FABRIC_FILE))

    def _mode_is_wrong(self) -> bool:
        present = self._before.get(netplan.FABRIC_FILE) is not None
        return present and self._mode(netplan.FABRIC_FILE) != 0o600

    def _mode(self, path: str) -> int:
        real = self.reader.path(path)
        return stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o600

    def _bytes(self, path: str) -> bytes | None:
        real = self.reader.path(path)
        return real.read_bytes() if real.exists() else None

    def _write(self, path: str, content: bytes | None, mode: int) -> None:
        write_or_remove(self.reader.path(path), content, mode)

    def _plan_bytes(self) -> bytes:
        return (json.dumps({**self.plan_node, "mtu": self.mtu}, indent=1, sort_keys=True) + "\n").encode()


def revert(reader: Reader, journal: Journal, runner: Runner = run) -> list[str]:
    """Give the node back the network files, addresses and MTUs it had before us; what was done, in words."""
    ours = reader.path(netplan.FABRIC_FILE)
    names = interfaces_of(ours.read_bytes() if ours.exists() else None)
    done = []
    for path in journal.kept:
        journal.restore(path)
        done.append(f"restored {path}")
    runner(["netplan", "generate"], timeout=_APPLY_SECONDS)
    runner(["netplan", "apply"], timeout=_APPLY_SECONDS)
    done.append("netplan apply")
    # Files that configure an interface again also say which addresses it has; only ours are taken away.
    claimed = {key for network in netplan.read_all(reader.root).values() for key in (network.get("ethernets") or {})}
    free = names - claimed
    mtus = {name: journal.noted("mtu", name) for name in free if journal.noted("mtu", name) is not None}
    done += fabric_live.correct({name: set() for name in free}, mtus, runner)
    for name in names:
        journal.forget("mtu", name)
    return done


def interfaces_of(content: bytes | None) -> set[str]:
    """The interfaces a fabric file of ours configures."""
    if content is None:
        return set()
    network = netplan.network_of(content.decode(errors="replace"), netplan.FABRIC_FILE)
    return {str(name) for name in network.get("ethernets") or {}}


def write_or_remove(path: Path, content: bytes | None, mode: int) -> None:
    """Write a file owned by root, or with None see that there is none."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content, mode, (0, 0) if os.geteuid() == 0 else None)
