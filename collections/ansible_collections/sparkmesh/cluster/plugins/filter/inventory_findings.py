"""Filter ``inventory_findings``: variables against the argument specs of roles and plays."""

from __future__ import annotations

DOCUMENTATION = r"""
name: inventory_findings
author: sparkmesh
version_added: "0.1.0"
short_description: Check the inventory strictly
description:
  - Compares the variables of nodes with the argument specs of all roles and plays. Text is not taken for a number.
  - A name that starts like one of ours and that nothing declares is reported with the nearest declared name.
  - A variable whose template cannot be evaluated is reported too.
positional: _input, roles_dir
options:
  _input:
    description:
      - The variables of every node by name.
      - C(hostvars) is possible where no variable is computed from C(hostvars); Ansible cannot nest the two.
    type: dict
    required: true
  roles_dir:
    description: The directory that holds the roles; C(playbooks/*.meta.yml) beside it is read too.
    type: str
    required: true
  nodes:
    description: The nodes to look at. Without it, all.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Refuse a wrong inventory
  ansible.builtin.assert:
    that: __preflight_problems | length == 0
    fail_msg: "{{ __preflight_problems }}"
  vars:
    __preflight_names: "{{ query('ansible.builtin.varnames', '^fabric_', '^node_') }}"
    __preflight_values: "{{ dict(__preflight_names | zip(query('ansible.builtin.vars', *__preflight_names))) }}"
    __preflight_problems: >-
      {{ {inventory_hostname: __preflight_values} | sparkmesh.cluster.inventory_findings(role_path | dirname) }}
"""

RETURN = r"""
_value:
  description: One sentence a problem, starting with the nodes it is true of. Empty when nothing is wrong.
  type: list
  elements: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleError, AnsibleFilterError
from ansible_collections.sparkmesh.cluster.plugins.module_utils.inventory_check import (
    checked_names,
    findings,
    load_specs,
    say_once,
)
from ansible_collections.sparkmesh.cluster.plugins.module_utils.plain import plain
from ansible_collections.sparkmesh.cluster.plugins.module_utils.refusal import Refusal
from jinja2 import Undefined, UndefinedError


def inventory_findings(hostvars: Mapping[str, Any], roles_dir: str, nodes: list[str] | None = None) -> list[str]:
    """Every problem with the variables of ``nodes``, one sentence each."""
    try:
        specs = load_specs(str(roles_dir))
    except Refusal as refusal:
        raise AnsibleFilterError("\n".join(["inventory_findings refuses:", *refusal.problems])) from None
    found: dict[str, list[str]] = {}
    for node in hostvars if nodes is None else nodes:
        if node not in hostvars:
            raise AnsibleFilterError(f"inventory_findings: {node} is not among the nodes {', '.join(hostvars)}")
        variables, lost = _evaluate(hostvars[node], specs)
        # What cannot be evaluated is reported as that, not as missing too.
        known = {name: spec for name, spec in specs.items() if name not in lost}
        found[plain(node)] = [*lost.values(), *findings(variables, known)]
    return say_once(found)


def _evaluate(hostvars: Mapping[str, Any], specs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Our variables as plain values, and for those whose templates fail a sentence each.

    Other variables are left alone: they may hold templates that make sense elsewhere.
    """
    variables: dict[str, Any] = {}
    lost: dict[str, str] = {}
    for name in checked_names(hostvars, specs):
        try:
            value = hostvars[name]
            if isinstance(value, Undefined):
                # An undefined value says why as soon as it is used.
                value = str(value)
            variables[name] = plain(value, name)
        except (AnsibleError, UndefinedError, TypeError) as error:
            lost[name] = f"{name} cannot be evaluated: {error}"
    return variables, lost


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"inventory_findings": inventory_findings}
