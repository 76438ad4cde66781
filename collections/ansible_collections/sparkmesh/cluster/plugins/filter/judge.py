"""Filter ``judge``: a probe against what is expected."""

from __future__ import annotations

DOCUMENTATION = r"""
name: judge
author: sparkmesh
version_added: "0.1.0"
short_description: Judge what a probe saw
description:
  - Compares a node's probe with an expectation and returns findings.
  - What the probe could not read is C(unobserved), never C(ok). What the expectation leaves out is not checked.
  - >-
    In a container, findings about the machine below it are C(not_applicable). What the lab emulates is marked.
positional: _input, expect, node
options:
  _input:
    description: The C(probe) that the module M(sparkmesh.cluster.probe) returned.
    type: dict
    required: true
  expect:
    description:
      - What the node should be, by section. Any key may be left out; an unknown one is an error.
      - >-
        C(host) has C(architecture), C(os_id), C(os_version), C(python_minimum), C(docker_minimum),
        C(clock_synchronized).
      - C(memory) has C(available_bytes) and C(total_bytes), C(storage) maps a path to free bytes; all are the least.
      - C(kernel) has C(release), C(page_size) in bytes, C(cmdline) as words that must be there.
      - C(gpu) has C(driver), C(names), C(uvm) as values of the loaded nvidia-uvm.
      - C(fabric) has C(links) of this node from the plan, with them C(mtu), C(speed) in Mb/s, C(rdma) (ports and GIDs).
      - C(image) has C(identity), C(source_id); C(model) has C(manifest).
      - C(runtime) has C(release), C(group_hash), C(active) (both units run, or both are stopped).
    type: dict
    required: true
  node:
    description: Name of the node in the findings.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Judge the fabric
  ansible.builtin.set_fact:
    __doctor_findings: >-
      {{ __doctor_probe.probe | sparkmesh.cluster.judge(
         {'fabric': {'mtu': fabric_mtu, 'links': fabric_plan.nodes[inventory_hostname].links}}, inventory_hostname) }}
"""

RETURN = r"""
_value:
  description: >-
    Findings with C(id), C(node), C(status) (ok, warn, fail, not_applicable, unobserved), C(title), C(seen), C(wanted),
    C(fix) and C(emulated).
  type: list
  elements: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.judge import judge
from ansible_collections.sparkmesh.cluster.plugins.plugin_utils.filters import as_filter


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"judge": as_filter(judge)}
