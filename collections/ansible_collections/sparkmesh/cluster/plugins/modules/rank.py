#!/usr/bin/python
"""Ansible module: one rank of a tensor-parallel group on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank
short_description: Install, start, prove, stop and roll back one rank
version_added: "0.1.0"
description:
  - Owns the rank spec, the secrets, the memory guard and the two systemd units of a rank on one node.
  - A tensor-parallel group is one failure domain, so a running rank is only restarted with consent.
options:
  state:
    description:
      - V(installed) writes files and units and records the release. It starts, stops and restarts nothing.
      - >-
        V(ready) starts the installed rank and waits for the proof: a generated token on rank 0, the head's API on
        the others. It returns at once when a unit fails.
      - V(stopped) stops the rank, then its guard.
      - V(absent) also removes units and files. Releases and evidence stay.
      - V(observed) reads only.
      - V(rolled_back) makes the release before the current one the installed one. It starts nothing.
    type: str
    choices: [installed, ready, stopped, absent, observed, rolled_back]
    default: observed
  spec:
    description:
      - The rank spec.
      - With O(state=ready) it must be the installed one; without it the installed one is used.
      - >-
        With O(state=rolled_back) it names the release to leave, so that a repeated task does not go back twice.
    type: dict
  secrets:
    description: >-
      Environment of the container that nobody may read, such as C(VLLM_API_KEY). Used with O(state=installed).
    type: dict
    default: {}
  guard_source:
    description: Text of the memory guard (C(sparkmesh_runtime/guard.py)). Needed with O(state=installed).
    type: str
  container_args:
    description: More arguments for C(docker run), such as those for GPUs and devices.
    type: list
    elements: str
    default: []
  model_root:
    description: Directory of the model store, mounted read-only at C(/models).
    type: path
    default: /var/lib/sparkmesh/models
  allow_restart:
    description: Consent to restart a rank that runs another release. Inventories call it C(release_allow_restart).
    type: bool
    default: false
  start_timeout:
    description: Seconds from the start to the proof. Without it, C(timeouts.start_s) of the spec.
    type: int
attributes:
  check_mode:
    support: full
    description: Nothing is written and no unit is touched. A node that was never deployed to is no error.
  diff_mode:
    support: full
    description: Values of secrets are masked.
author: sparkmesh
"""

EXAMPLES = r"""
- name: Install the rank
  sparkmesh.cluster.rank:
    state: installed
    spec: "{{ __runtime_spec }}"
    secrets: {VLLM_API_KEY: "{{ runtime_api_key }}"}
    guard_source: "{{ lookup('file', role_path ~ '/../../runtime/src/sparkmesh_runtime/guard.py') }}"

- name: Start the rank and wait for a token
  sparkmesh.cluster.rank:
    state: ready
    allow_restart: "{{ release_allow_restart }}"
"""

RETURN = r"""
release:
  description: The installed release, null when none is.
  returned: always
  type: str
group_hash:
  description: Digest over everything that must be equal on all ranks.
  returned: always
  type: str
phase:
  description: How far the rank is, one of the phases of a start, C(ready), C(stopped) or C(installed).
  returned: always
  type: str
seconds:
  description: Seconds waited.
  returned: always
  type: float
spec:
  description: The spec that is installed after the task.
  returned: state is observed or rolled_back
  type: dict
units:
  description: Active state by unit, null where systemd does not answer.
  returned: state is observed or installed
  type: dict
running_release:
  description: The release of the running container, null when none runs.
  returned: state is observed or installed
  type: str
restart_needed:
  description: Whether a container runs that differs from what is installed.
  returned: state is observed or installed
  type: bool
ready:
  description: Whether the rank was proved ready since it was started.
  returned: state is observed
  type: bool
releases:
  description: The records of releases, oldest first.
  returned: state is observed
  type: list
  elements: dict
evidence:
  description: Names of the evidence files that a guard left.
  returned: state is observed
  type: list
  elements: str
log:
  description: The last 40 lines of the rank's journal.
  returned: a start failed
  type: list
  elements: str
"""

from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils import rank, rank_ready, units
from ansible_collections.sparkmesh.cluster.plugins.module_utils._module import NodeModule


def act(node: rank.Node, params: dict[str, Any]) -> dict[str, Any]:
    """Reach the wanted state; returns the result's own keys. Raises RankError."""
    spec: dict[str, Any] | None = params["spec"]
    if spec is not None and (problems := rank.check_spec(spec)):
        raise rank.RankError(f"{'; '.join(problems)}; fix: render the spec with the rank_spec filter")
    state = params["state"]
    if state == "installed":
        assert spec is not None  # required_if
        return _install(node, spec, params)
    if state == "ready":
        return _ready(node, spec, params)
    if state == "rolled_back":
        now = rank.roll_back(node, spec["release"] if spec else None)
        return _of(now, "installed") | {"spec": now}
    if state == "stopped":
        rank.stop(node)
        return _of(rank.installed_spec(node), "stopped")
    if state == "absent":
        rank.remove(node)
        return _of(None, "absent")
    return {"phase": _phase(node), "seconds": 0.0} | rank.observe(node)


def _install(node: rank.Node, spec: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    rank.install(
        node,
        spec,
        secrets=params["secrets"],
        guard_source=params["guard_source"],
        container_args=params["container_args"],
        model_root=params["model_root"],
    )
    seen = rank.observe(node)
    # In check mode the files are still the old ones; a container that runs now would differ from the new.
    needed = seen["restart_needed"] or (node.check_mode and node.changed and seen["running_release"] is not None)
    return _of(spec, "installed") | {
        "units": seen["units"],
        "running_release": seen["running_release"],
        "restart_needed": needed,
    }


def _ready(node: rank.Node, spec: dict[str, Any] | None, params: dict[str, Any]) -> dict[str, Any]:
    wanted = _to_start(node, spec)
    if wanted is None:
        node.actions.append("start the rank once it is installed")
        return _of(spec, "would start")
    limit = params["start_timeout"] or wanted["timeouts"]["start_s"]
    return _of(wanted, "") | rank_ready.ensure(node, wanted, params["allow_restart"], float(limit))


def _to_start(node: rank.Node, spec: dict[str, Any] | None) -> dict[str, Any] | None:
    """The spec to start. In check mode it may not be installed yet; then None, or the one that would be."""
    installed = rank.installed_spec(node)
    if node.check_mode:
        return spec or installed if installed else None
    if installed is None:
        raise rank.RankError("no rank is installed, wanted one to start; fix: state: installed first")
    if spec is not None and spec != installed:
        raise rank.RankError(
            f"installed is release {installed['release']}, group {installed['group_hash']}; wanted release "
            f"{spec['release']}, group {spec['group_hash']}, with an equal spec; fix: state: installed first"
        )
    return installed


def _phase(node: rank.Node) -> str:
    unit = rank.unit_state(node, units.RANK_UNIT)
    if not unit:
        return "unobserved"
    if not rank.is_active(unit):
        return "stopped"
    if node.path(units.READY_PATH).exists():
        return "ready"
    return rank_ready.log_phase(node, unit.get("InvocationID", ""))


def _of(spec: dict[str, Any] | None, phase: str) -> dict[str, Any]:
    return {
        "release": spec["release"] if spec else None,
        "group_hash": spec["group_hash"] if spec else None,
        "phase": phase,
        "seconds": 0.0,
    }


def main() -> None:
    """Module entry point."""
    module = NodeModule(
        {
            "state": {
                "type": "str",
                "default": "observed",
                "choices": ["installed", "ready", "stopped", "absent", "observed", "rolled_back"],
            },
            "spec": {"type": "dict"},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "guard_source": {"type": "str"},
            "container_args": {"type": "list", "elements": "str", "default": []},
            "model_root": {"type": "path", "default": "/var/lib/sparkmesh/models"},
            "allow_restart": {"type": "bool", "default": False},
            "start_timeout": {"type": "int"},
        },
        required_if=[("state", "installed", ["spec", "guard_source"])],
    )
    node = rank.Node(check_mode=module.check_mode)
    try:
        result = act(node, module.params)
    except (rank.RankError, OSError, ValueError) as problem:
        facts = problem.facts if isinstance(problem, rank.RankError) else {}
        module.fail(
            str(problem), changed=node.changed and not node.check_mode, actions=node.actions, diff=node.diff, **facts
        )
    module.exit(changed=node.changed, actions=node.actions, diff=node.diff, **result)


if __name__ == "__main__":
    main()
