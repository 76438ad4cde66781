"""Host settings as data: apply, check or revert a list of descriptors in one go.

A descriptor is ``{name, kind, ...}``; the kinds and their keys are in ``KINDS``. A result is
``{name, status, seen, wanted, reason}``. A setting that cannot exist here (a kernel-wide sysctl in a container, a unit
that is not installed) is ``not_applicable`` with the reason; on a real machine a refused setting is ``failed``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.host_kinds import (
    FileKind,
    HoldKind,
    Kind,
    MaskKind,
    Outcome,
    PackageKind,
    Site,
)
from ansible_collections.sparkmesh.cluster.plugins.module_utils.host_sysctl import SysctlKind
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import CommandFailed

# Packages first: files and holds may belong to what they install.
_ORDER: dict[str, Callable[[Site], Kind]] = {
    "package": PackageKind,
    "file": FileKind,
    "sysctl": SysctlKind,
    "service_mask": MaskKind,
    "hold": HoldKind,
}
# Required and optional keys beside name, kind and applies.
KINDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "package": (frozenset({"packages"}), frozenset()),
    "file": (frozenset({"path"}), frozenset({"content", "mode", "absent"})),
    "sysctl": (frozenset({"key", "value"}), frozenset()),
    "service_mask": (frozenset({"unit"}), frozenset()),
    "hold": (frozenset({"packages"}), frozenset()),
}


def problems_of(settings: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong with the descriptors themselves, one sentence each; empty when they can be used."""
    problems = []
    seen: set[str] = set()
    for position, setting in enumerate(settings):
        name = str(setting.get("name") or f"number {position + 1}")
        kind = setting.get("kind")
        if "name" not in setting:
            problems.append(f"setting {name} has no name; give it one that tells an operator what it is for")
        if name in seen:
            problems.append(f"setting {name} is there twice; names must be unique")
        seen.add(name)
        if kind not in KINDS:
            problems.append(f"setting {name} has kind {kind!r}; wanted one of {', '.join(KINDS)}")
            continue
        required, optional = KINDS[kind]
        keys = set(setting) - {"name", "kind", "applies"}
        if required - keys:
            problems.append(f"setting {name} ({kind}) lacks {', '.join(sorted(required - keys))}")
        if keys - required - optional:
            problems.append(
                f"setting {name} ({kind}) has unknown keys: {', '.join(sorted(keys - required - optional))}"
            )
        if kind == "file":
            if ("content" in setting) == bool(setting.get("absent")):
                problems.append(f"setting {name} (file) needs either content or absent: true")
            if "path" in setting and not str(setting["path"]).startswith("/"):
                problems.append(f"setting {name} (file) has path {setting['path']!r}; wanted an absolute one")
    return problems


def settle(settings: Sequence[dict[str, Any]], state: str, site: Site) -> list[Outcome]:
    """Bring every setting into ``state`` ("applied", "checked", "reverted") and tell, in the order given.

    One setting that fails does not stop the others. With ``site.dry`` nothing is changed.
    """
    outcomes: dict[str, Outcome] = {}
    for kind_name, make in _ORDER.items():
        mine = [setting for setting in settings if setting["kind"] == kind_name]
        here = []
        for setting in mine:
            reason = _why_not_here(setting, site)
            if reason:
                outcomes[setting["name"]] = Outcome(setting["name"], "not_applicable", reason=reason)
            else:
                here.append(setting)
        if here:
            try:
                done = make(site).settle(here, state)
            except CommandFailed as problem:
                done = [Outcome(setting["name"], "failed", reason=str(problem)) for setting in here]
            outcomes.update((outcome.name, outcome) for outcome in done)
    return [outcomes[setting["name"]] for setting in settings]


def _why_not_here(setting: dict[str, Any], site: Site) -> str:
    applies = setting.get("applies") or {}
    if site.container and applies.get("containers", True) is False:
        return str(applies.get("reason") or "does not apply in a container")
    return ""
