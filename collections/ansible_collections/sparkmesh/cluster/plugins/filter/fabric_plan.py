"""Filter ``fabric_plan``: from ranks and cables to every fabric address."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_plan
author: sparkmesh
version_added: "0.1.0"
short_description: Plan the fabric addresses of all nodes
description:
  - Computes interfaces, addresses, peers and relay neighbours of every node from ranks and cables.
  - The same cabling gives the same plan in whatever order the cables are listed. Moving a cable changes only its links.
  - Fails with every problem found, one a line.
positional: _input, topology
options:
  _input:
    description: Rank of every node, from 0 on.
    type: dict
    required: true
  topology:
    description: Shape of the cabling. A pair has 2 nodes, a triangle 3, a ring 4.
    type: str
    choices: [pair, triangle, ring]
    required: true
  pool:
    description: Private IPv4 network, /18 or larger, from which the /24 networks come.
    type: str
    default: 10.20.0.0/16
  mtu:
    description: MTU of all links in bytes, 1500 to 9000.
    type: int
    default: 9000
  cables:
    description: Cables as C(node:cage node:cage). None means cage p0 of every rank goes to p1 of the next.
    type: list
    elements: str
  reserved:
    description: Networks that the pool must not overlap, such as management, Docker and VPN.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Plan a triangle
  ansible.builtin.debug:
    msg: "{{ {'spark-1': 0, 'spark-2': 1, 'spark-3': 2} | sparkmesh.cluster.fabric_plan('triangle') }}"
"""

RETURN = r"""
_value:
  description: >-
    The plan, with C(topology), C(mtu), C(order), C(cables), C(nodes) (rank, links, next_hop) and C(warnings).
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_plan import fabric_plan
from ansible_collections.sparkmesh.cluster.plugins.plugin_utils.filters import as_filter


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"fabric_plan": as_filter(fabric_plan)}
