"""Filter ``judge_equal``: what must be alike on all nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
name: judge_equal
author: sparkmesh
version_added: "0.1.0"
short_description: Judge whether nodes are alike
description: Compares architecture, kernel, page size, Docker and Python over the probes of all nodes.
options:
  _input:
    description: The probe of every node, by node name.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Compare the nodes
  ansible.builtin.set_fact:
    __doctor_findings: "{{ __doctor_probes | sparkmesh.cluster.judge_equal }}"
"""

RETURN = r"""
_value:
  description: Findings as the filter P(sparkmesh.cluster.judge#filter) returns them, with C(node) C(all).
  type: list
  elements: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.judge import judge_equal
from ansible_collections.sparkmesh.cluster.plugins.plugin_utils.filters import as_filter


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"judge_equal": as_filter(judge_equal)}
