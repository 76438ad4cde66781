"""Filter ``fabric_diff``: what changed between two plans."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_diff
author: sparkmesh
version_added: "0.1.0"
short_description: Compare two fabric plans
description: Says in words which cables were added, removed, moved, exchanged or renumbered.
positional: _input, new
options:
  _input:
    description: The plan as it was.
    type: dict
    required: true
  new:
    description: The plan as it shall be.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show what a recabling changes
  ansible.builtin.debug:
    msg: "{{ __recable_old | sparkmesh.cluster.fabric_diff(fabric_plan) | map(attribute='text') }}"
"""

RETURN = r"""
_value:
  description: >-
    Differences with C(kind), C(cable) and C(text). Kinds are topology_changed, node_added, node_removed, rank_changed,
    mtu_changed, swapped, moved_end, removed, added and renumbered. Empty when nothing changes.
  type: list
  elements: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_plan import fabric_diff
from ansible_collections.sparkmesh.cluster.plugins.plugin_utils.filters import as_filter


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"fabric_diff": as_filter(fabric_diff)}
