"""Judging a probe: what a node is against what it should be.

Every check is a row: which keys of the probe it needs, what is wanted, how to compare, what to do about it. One
function turns a row into a finding, so the rules about what counts as seen are in one place:

* a key that the probe could not read, or never asked for, is ``unobserved``, never ``ok``;
* in a container, checks of the machine below it are ``not_applicable``, unless the lab makes up what they need;
* a finding about an emulated key says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ansible_collections.sparkmesh.cluster.plugins.module_utils.judge_checks import (
    ALIKE,
    EMULATED,
    MISSING,
    Check,
    checks_of,
    expectation_problems,
    walk,
)
from ansible_collections.sparkmesh.cluster.plugins.module_utils.refusal import Refusal

STATUSES = ("ok", "warn", "fail", "not_applicable", "unobserved")


class Finding(TypedDict):
    """One answer. ``status`` is one of ``STATUSES``; ``seen`` and ``wanted`` are JSON values."""

    id: str
    node: str
    status: str
    title: str
    seen: Any
    wanted: Any
    fix: str
    emulated: bool


class JudgeError(Refusal):
    """The expectation cannot be checked: a misspelt key must not read as a passed check."""


def judge(probe: Mapping[str, Any], expect: Mapping[str, Any], node: str) -> list[Finding]:
    """Findings about ``node``: one per expected thing.

    ``probe`` is what the module ``probe`` returned. ``expect`` holds any of the keys in ``judge_checks.EXPECT``; what
    it leaves out, or gives as None, is not checked. Raises ``JudgeError`` for keys or values that no check knows.
    """
    problems = [
        f"{name} is {value!r}, wanted a mapping"
        for name, value in (("probe", probe), ("expect", expect))
        if not isinstance(value, Mapping)
    ]
    if problems:
        raise JudgeError(problems)
    given = {section: _given(wanted) for section, wanted in expect.items()}
    problems = expectation_problems(given)
    if problems:
        raise JudgeError(problems)
    return [_finding(check, probe, node) for check in checks_of(given, probe)]


def judge_equal(probes: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Findings about what must be alike on all nodes (``node`` is ``all``, ``seen`` is node → value)."""
    problems = [
        f"probe of {node} is {probe!r}, wanted a mapping"
        for node, probe in probes.items()
        if not isinstance(probe, Mapping)
    ]
    if problems:
        raise JudgeError(problems)
    findings: list[Finding] = []
    for alike in ALIKE:
        key = ".".join(alike.path)
        seen = {node: _known(probe, alike.path) for node, probe in probes.items()}
        blind = [node for node, value in seen.items() if value is MISSING]
        shared = [node for node, probe in probes.items() if alike.machine and _container(probe)]
        known = {node: value for node, value in seen.items() if value is not MISSING}
        differ = len({repr(value) for value in known.values()}) > 1
        if len(probes) < 2:
            status, fix = "not_applicable", "one node has nothing to be equal to"
        elif shared and not differ:
            status, fix = "not_applicable", f"{', '.join(shared)}: a container shares the kernel of its host"
        elif differ:
            status, fix = alike.severity, alike.fix
        elif blind:
            status, fix = "unobserved", f"{', '.join(blind)}: {key} could not be read; run the probe with become"
        else:
            status, fix = "ok", ""
        findings.append(
            {
                "id": alike.id,
                "node": "all",
                "status": status,
                "title": alike.title,
                "seen": known,
                "wanted": "the same on all nodes",
                "fix": fix,
                "emulated": any(_emulated(probe, [key]) for probe in probes.values()),
            }
        )
    return findings


def exit_code(findings: Iterable[Mapping[str, Any]]) -> int:
    """0: something was proved and nothing is open; 1: something fails; 2: warnings, unobserved, or nothing proved."""
    statuses = {finding["status"] for finding in findings}
    if "fail" in statuses:
        return 1
    return 0 if "ok" in statuses and statuses <= {"ok", "not_applicable"} else 2


def _given(wanted: Any) -> Any:
    return {key: value for key, value in wanted.items() if value is not None} if isinstance(wanted, Mapping) else wanted


def _finding(check: Check, probe: Mapping[str, Any], node: str) -> Finding:
    value = walk(probe, check.path, check.absent_from)
    keys = [".".join(check.path), *check.also]
    status, seen, fix, emulated = "ok", None, "", _emulated(probe, keys)
    if check.machine and (kind := _container(probe)) and not (check.emulable and emulated):
        status, fix = "not_applicable", f"this node is a container ({kind}); the check is about the machine below it"
    elif value is MISSING or _lost(probe, keys):
        status, fix = "unobserved", f"{keys[0]} could not be read; run the probe with become and this section"
    else:
        seen = "absent" if value is None else check.show(value)
        if not (check.absent_ok if value is None else check.test(value)):
            status, fix = check.severity, check.fix
            if lost := _inside(probe, keys):
                status, fix = "unobserved", f"{', '.join(lost)} could not be read and may be the one"
    return {
        "id": check.id,
        "node": node,
        "status": status,
        "title": check.title,
        "seen": seen,
        "wanted": check.wanted,
        "fix": fix,
        "emulated": emulated,
    }


def _known(probe: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value = walk(probe, path)
    return MISSING if value is None or _lost(probe, [".".join(path)]) else value


def _container(probe: Mapping[str, Any]) -> Any:
    """The kind of container, or something false. Not known to be a container counts as none."""
    host = probe.get("host")
    return host.get("container") if isinstance(host, Mapping) else None


def _emulated(probe: Mapping[str, Any], keys: list[str]) -> bool:
    """Whether the lab lists one of the keys; it writes a word for the part, then perhaps ``: `` and what it does."""
    words = [entry.partition(": ")[0] for entry in probe.get("emulated", [])]
    return _covered([EMULATED.get(word, word) for word in words], keys)


def _lost(probe: Mapping[str, Any], keys: list[str]) -> bool:
    return _covered(probe.get("unobserved", []), keys)


def _covered(entries: list[str], keys: list[str]) -> bool:
    """Whether one of the keys is listed, or something that contains it."""
    return any(key == entry or key.startswith(f"{entry}.") for entry in entries for key in keys)


def _inside(probe: Mapping[str, Any], keys: list[str]) -> list[str]:
    """What could not be read within one of the keys: as long as there is any, not finding something proves nothing."""
    return [entry for entry in probe.get("unobserved", []) if any(entry.startswith(f"{key}.") for key in keys)]
