"""The filter ``link_findings``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: link_findings
author: sparkmesh
version_added: "0.1.0"
short_description: Turn the proof of links into findings
description: Turn the proof of links into findings.
options:
  _input:
    description: The C(links) that the module M(sparkmesh.cluster.fabric_links) returned.
    type: list
    required: true
  node:
    description: The node they belong to.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show it
  ansible.builtin.debug:
    msg: "{{ __doctor_input | sparkmesh.cluster.link_findings(inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: Findings with the id fabric.proof, one for each link.
  type: list
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.findings import link_findings
from ansible_collections.sparkmesh.cluster.plugins.plugin_utils.filters import as_filter


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"link_findings": as_filter(link_findings)}
