"""The state of one rank on a node: files, units, releases. Plain Python; `root` lets tests use another tree."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils import units
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import CommandFailed, Result, run, write_file

UNIT_DIR, STATE_DIR = "/etc/systemd/system", "/var/lib/sparkmesh"
RELEASES = f"{STATE_DIR}/releases.jsonl"
RANK_UNIT_PATH, GUARD_UNIT_PATH = f"{UNIT_DIR}/{units.RANK_UNIT}", f"{UNIT_DIR}/{units.GUARD_UNIT}"
# What this module itself uses of a spec, by dotted path; the published schema is judged on the controller and again
# by the launcher.
NEEDED: dict[str, type | tuple[type, ...]] = {
    "rank": int,
    "size": int,
    "head.address": str,
    "api.host": str,
    "api.port": int,
    "image.identity": str,
    "image.reference": str,
    "model.name": str,
    "model.manifest": str,
    "vllm.options": dict,
    "guard": dict,
    "timeouts.start_s": (int, float),
    "timeouts.stop_s": (int, float),
    "release": str,
    "group_hash": str,
}
HIDDEN = "********"


class RankError(Exception):
    """The wanted state cannot be reached; the text names the thing, seen, wanted and fix. `facts` joins the result."""

    def __init__(self, text: str, **facts: Any) -> None:
        super().__init__(text)
        self.facts = facts


@dataclass(frozen=True)
class File:
    """A file as it should be; a secret one never shows in a diff."""

    path: str
    text: str
    mode: int
    secret: bool = False


@dataclass
class Node:
    """One node as a module call sees it. In check mode nothing is written and no command that changes anything runs."""

    root: Path = Path("/")
    check_mode: bool = False
    actions: list[str] = field(default_factory=list)
    diff: list[dict[str, str]] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether anything was changed or, in check mode, would be."""
        return bool(self.actions)

    def path(self, path: str) -> Path:
        """Where `path` of the node lies for us."""
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        """The text of a file, None when there is none."""
        try:
            return self.path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def ask(self, *command: str, timeout: float = 30.0) -> Result:
        """Run a command that only reads. One that cannot run answers with status 127 and says why."""
        try:
            return run(command, timeout=timeout, check=False)
        except CommandFailed as problem:
            return Result(command, 127, "", str(problem))

    def act(self, said: str, *command: str, timeout: float = 120.0) -> None:
        """Run a command that changes the node, unless in check mode; `said` goes to the actions."""
        self.actions.append(said)
        if self.check_mode:
            return
        try:
            run(command, timeout=timeout)
        except CommandFailed as problem:
            raise RankError(
                f"{said}: {problem}; fix: systemctl status {units.RANK_UNIT} {units.GUARD_UNIT}"
            ) from problem

    def put(self, file: File) -> bool:
        """Write a file if its text or mode differs; True when it does."""
        before, target = self.text(file.path), self.path(file.path)
        mode = None if before is None else target.stat().st_mode & 0o7777
        if before == file.text and mode == file.mode:
            return False
        self.actions.append(f"write {file.path}" if before != file.text else f"set mode {file.mode:04o} on {file.path}")
        if before != file.text:
            self.diff.append(
                {
                    "before_header": file.path,
                    "after_header": file.path,
                    "before": _shown(before or "", file.secret),
                    "after": _masked_after(before or "", file.text) if file.secret else file.text,
                }
            )
        if not self.check_mode:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_file(target, file.text.encode(), file.mode)
        return True

    def drop(self, path: str, secret: bool = False) -> bool:
        """Remove a file if it is there; True when it was."""
        before = self.text(path)
        if before is None:
            return False
        self.actions.append(f"remove {path}")
        self.diff.append({"before_header": path, "after_header": path, "before": _shown(before, secret), "after": ""})
        if not self.check_mode:
            self.path(path).unlink()
        return True


def _shown(text: str, secret: bool) -> str:
    if not secret:
        return text
    return "".join(f"{line.split('=', 1)[0]}={HIDDEN}\n" for line in text.splitlines() if "=" in line)


def _masked_after(before: str, after: str) -> str:
    """Like `_shown`, but a value that changes is told apart from one that stays."""
    kept = set(before.splitlines())
    return "".join(
        f"{line.split('=', 1)[0]}={HIDDEN}{'' if line in kept else ' (changed)'}\n"
        for line in after.splitlines()
        if "=" in line
    )


def check_spec(spec: Mapping[str, Any]) -> list[str]:
    """What is wrong with the parts of a spec that this module uses, in words."""
    found = []
    for path, kind in NEEDED.items():
        value: Any = spec
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            wanted = kind.__name__ if isinstance(kind, type) else "number"
            found.append(f"spec.{path}: seen {value!r}, wanted {wanted}")
    return found


def spec_text(spec: Mapping[str, Any]) -> str:
    """The text of rank.json: sorted and indented, so that two releases can be compared by eye."""
    return json.dumps(spec, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def env_text(secrets: Mapping[str, Any]) -> str:
    """The text of rank.env in docker's format, which knows no quoting and no continuation."""
    lines = []
    for name, value in sorted(secrets.items()):
        if not name.isidentifier() or not isinstance(value, str) or "\n" in value or "\r" in value:
            raise RankError(
                f"secret {name!r}: seen a value or name that an environment file cannot hold, wanted "
                "a variable name and text of one line; fix: the secrets of the inventory"
            )
        lines.append(f"{name}={value}\n")
    return "".join(lines)


def installed_spec(node: Node) -> dict[str, Any] | None:
    """The spec installed now, None when there is none. Raises RankError when it is not a spec."""
    text = node.text(units.SPEC_PATH)
    if text is None:
        return None
    try:
        spec = json.loads(text)
        problems = check_spec(spec)
    except (ValueError, AttributeError) as error:
        problems = [str(error)]
    if problems:
        raise RankError(f"{units.SPEC_PATH}: {'; '.join(problems)}; fix: install the rank again")
    return dict(spec)


def install(
    node: Node,
    spec: Mapping[str, Any],
    *,
    secrets: Mapping[str, Any],
    guard_source: str,
    container_args: Sequence[str],
    model_root: str,
) -> None:
    """Write everything a rank needs and record its release. Starts, stops and restarts nothing."""
    rank_unit = units.rank_unit(spec, container_args, model_root)
    kept = f"{STATE_DIR}/releases/{spec['release']}"
    # The release's own copy comes first: whatever is interrupted later, what was installed can be found again.
    node.put(File(f"{kept}/rank.json", spec_text(spec), 0o640))
    node.put(File(f"{kept}/{units.RANK_UNIT}", rank_unit, 0o644))
    node.put(File(units.ENV_PATH, env_text(secrets), 0o600, secret=True))
    node.put(File(units.GUARD_PATH, guard_source, 0o644))
    _switch(node, spec_text(spec), rank_unit)
    history = releases(node)
    if not history or (history[-1]["release"], history[-1]["group_hash"]) != (spec["release"], spec["group_hash"]):
        _record(node, "installed", spec)


def roll_back(node: Node, leave: str | None) -> dict[str, Any]:
    """Switch the files to the release before the current one and return its spec.

    With `leave` it acts only while that release is the current one, so that a repeated task does not go back twice.
    """
    stack: list[str] = []
    for entry in releases(node):
        if entry["event"] == "rolled_back" and entry["release"] in stack:
            del stack[len(stack) - 1 - stack[::-1].index(entry["release"]) + 1 :]
        elif not stack or stack[-1] != entry["release"]:
            stack.append(entry["release"])
    current = installed_spec(node)
    if leave and current and current["release"] != leave:
        return current
    if len(stack) < 2:
        raise RankError(
            f"{RELEASES}: seen {len(stack)} release(s) ({', '.join(stack) or 'none'}), wanted one before the current "
            "to roll back to; fix: deploy the release you want"
        )
    kept = f"{STATE_DIR}/releases/{stack[-2]}"
    text, unit = node.text(f"{kept}/rank.json"), node.text(f"{kept}/{units.RANK_UNIT}")
    if text is None or unit is None:
        raise RankError(
            f"{kept}: rank.json or {units.RANK_UNIT} is gone, wanted both to roll back to {stack[-2]}; "
            "fix: deploy that release again"
        )
    spec: dict[str, Any] = json.loads(text)
    _switch(node, text, unit)
    _record(node, "rolled_back", spec)
    return spec


def _switch(node: Node, spec: str, rank_unit: str) -> None:
    """Make a spec and its unit the current ones; systemd hears of it only when a unit changed."""
    node.put(File(units.SPEC_PATH, spec, 0o640))
    written = [
        node.put(File(GUARD_UNIT_PATH, units.guard_unit(), 0o644)),
        node.put(File(RANK_UNIT_PATH, rank_unit, 0o644)),
    ]
    if any(written):
        node.act("reload systemd", "systemctl", "daemon-reload")


def releases(node: Node) -> list[dict[str, Any]]:
    """The records of releases.jsonl, oldest first. A torn last line (power cut) is left out."""
    found = []
    for line in (node.text(RELEASES) or "").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and {"event", "release", "group_hash"} <= entry.keys():
            found.append(entry)
    return found


def _record(node: Node, event: str, spec: Mapping[str, Any]) -> None:
    node.actions.append(f"record {event} {spec['release']}")
    if node.check_mode:
        return
    entry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "event": event,
        "release": spec["release"],
        "group_hash": spec["group_hash"],
        "image": spec["image"]["identity"],
        "model": spec["model"]["manifest"],
    }
    # Replaced whole and in one step, so that a torn line cannot swallow the record that follows it.
    old = "".join(f"{json.dumps(known, sort_keys=True)}\n" for known in releases(node))
    write_file(node.path(RELEASES), f"{old}{json.dumps(entry, sort_keys=True)}\n".encode(), 0o640)


def unit_state(node: Node, unit: str) -> dict[str, str]:
    """{LoadState, ActiveState, SubState, Result, InvocationID} of a unit; empty where systemd does not answer."""
    asked = node.ask("systemctl", "show", unit, "--property=LoadState,ActiveState,SubState,Result,InvocationID")
    return dict(line.split("=", 1) for line in asked.out.splitlines() if "=" in line) if asked.rc == 0 else {}


def running(node: Node) -> dict[str, str] | None:
    """{release, config} of the running container, None when none runs."""
    form = "|".join(f'{{{{index .Config.Labels "{label}"}}}}' for label in (units.RELEASE_LABEL, units.CONFIG_LABEL))
    asked = node.ask(
        "docker", "inspect", "--type", "container", "--format", f"{{{{.State.Running}}}}|{form}", units.CONTAINER
    )
    state, _, labels = asked.out.strip().partition("|")
    if asked.rc != 0 or state != "true":
        return None
    release, _, config = labels.partition("|")
    return {"release": release, "config": config}


def wanted_config(node: Node) -> str | None:
    """The configuration digest the installed unit would start a container with."""
    text = node.text(RANK_UNIT_PATH) or ""
    _, found, rest = text.partition(f"{units.CONFIG_LABEL}=")
    return rest[:12] if found else None


def is_active(state: Mapping[str, str]) -> bool:
    """Whether a unit runs or is about to."""
    return state.get("ActiveState") in ("active", "activating", "reloading")


def observe(node: Node) -> dict[str, Any]:
    """Everything a reader may want to know of a rank; reads only. None means unobserved or not there."""
    spec, now = installed_spec(node), running(node)
    rank, guard = unit_state(node, units.RANK_UNIT), unit_state(node, units.GUARD_UNIT)
    evidence = node.path(f"{STATE_DIR}/evidence")
    return {
        "installed": spec is not None,
        "spec": spec,
        "release": spec["release"] if spec else None,
        "group_hash": spec["group_hash"] if spec else None,
        "units": {units.RANK_UNIT: rank.get("ActiveState"), units.GUARD_UNIT: guard.get("ActiveState")},
        "running_release": now["release"] if now else None,
        "restart_needed": bool(now and spec and now != {"release": spec["release"], "config": wanted_config(node)}),
        "ready": node.path(units.READY_PATH).exists() and is_active(rank),
        "releases": releases(node),
        "evidence": sorted(file.name for file in evidence.glob("*.json")) if evidence.is_dir() else [],
    }


def stop(node: Node) -> None:
    """Stop the rank, then its guard: the rank is guarded to its end. `systemctl stop` waits as long as the unit may."""
    for unit in (units.RANK_UNIT, units.GUARD_UNIT):
        if is_active(unit_state(node, unit)):
            node.act(f"stop {unit}", "systemctl", "stop", unit, timeout=1800)
    if not node.check_mode:
        node.path(units.READY_PATH).unlink(missing_ok=True)


def remove(node: Node) -> None:
    """Stop and remove units, spec, secrets and guard. Releases and evidence stay: they are the node's history."""
    stop(node)
    gone = [node.drop(path) for path in (RANK_UNIT_PATH, GUARD_UNIT_PATH)]
    if any(gone):
        node.act("reload systemd", "systemctl", "daemon-reload")
        if not node.check_mode:
            # A unit that failed stays known to systemd without its file until this.
            node.ask("systemctl", "reset-failed", units.RANK_UNIT, units.GUARD_UNIT)
    for path, secret in ((units.SPEC_PATH, False), (units.ENV_PATH, True), (units.GUARD_PATH, False)):
        node.drop(path, secret)
