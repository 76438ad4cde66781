"""Filter ``rank_spec``: the document that starts one rank."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rank_spec
author: sparkmesh
version_added: "0.1.0"
short_description: Build the rank spec of a node
description:
  - Renders inventory, profile, plan, image and model into the one document that a rank starts from.
  - Fails with every problem found, one a line.
options:
  _input:
    description: Inventory name of the node.
    type: str
    required: true
  ranks:
    description: Rank of every node.
    type: dict
    required: true
  addresses:
    description: Control address of every node, on the management network.
    type: dict
    required: true
  plan:
    description: The fabric plan.
    type: dict
    required: true
  profile:
    description: >-
      The serving profile with C(name), C(fabric_transport) (nccl or gloo), C(master_port), C(api) (host, port),
      C(options), C(environment), C(guard) (start_floor_bytes, start_period_s, steady_floor_bytes, steady_period_s) and
      C(timeouts) (start_s, stop_s). An optional C(tensor_parallel_size) must equal the number of ranks.
    type: dict
    required: true
  image:
    description: The image with C(identity) and C(reference), the reference by digest.
    type: dict
    required: true
  model:
    description: The model with C(path) inside the container, C(name) and C(manifest).
    type: dict
    required: true
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  management_interface:
    description: The interface of this node on the management network; one name.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Build this node's spec
  ansible.builtin.set_fact:
    __runtime_spec: >-
      {{ inventory_hostname | sparkmesh.cluster.rank_spec(ranks=cluster_ranks, addresses=cluster_addresses,
         plan=fabric_plan, profile=__runtime_profile, image=__runtime_image, model=__runtime_model,
         cluster=cluster_name, management_interface=fabric_management_interface) }}
"""

RETURN = r"""
_value:
  description: The rank spec.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.rank_spec import rank_spec
from ansible_collections.sparkmesh.cluster.plugins.plugin_utils.filters import as_filter


class FilterModule:
    """Registers the filter."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name → callable."""
        return {"rank_spec": as_filter(rank_spec)}
