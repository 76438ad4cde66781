"""The filter ``findings_text``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: findings_text
author: sparkmesh
version_added: "0.1.0"
short_description: Put findings into words
description: Put findings into words.
options:
  _input:
    description: Findings as the filter P(sparkmesh.cluster.judge#filter) returns them.
    type: list
    required: true
"""

EXAMPLES = r"""
- name: Show it
  ansible.builtin.debug:
    msg: "{{ __doctor_input | sparkmesh.cluster.findings_text }}"
"""

RETURN = r"""
_value:
  description: One line for each finding, the worst first.
  type: list
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.findings import findings_text
from ansible_collections.sparkmesh.cluster.plugins.plugin_utils.filters import as_filter


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"findings_text": as_filter(findings_text)}
