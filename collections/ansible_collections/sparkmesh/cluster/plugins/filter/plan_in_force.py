"""The filter ``plan_in_force``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: plan_in_force
author: sparkmesh
version_added: "0.1.0"
short_description: Put the plan in force together
description: Put the plan in force together.
options:
  _input:
    description: Content of C(/etc/sparkmesh/fabric.json) of every node, by node name.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show it
  ansible.builtin.debug:
    msg: "{{ __doctor_input | sparkmesh.cluster.plan_in_force }}"
"""

RETURN = r"""
_value:
  description: A plan that the filter P(sparkmesh.cluster.fabric_diff#filter) takes.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_in_force import plan_in_force
from ansible_collections.sparkmesh.cluster.plugins.plugin_utils.filters import as_filter


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"plan_in_force": as_filter(plan_in_force)}
