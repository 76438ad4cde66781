"""The plan in force, put together from what each node keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.refusal import Refusal

# Cables and nodes tell the topologies apart: a pair has one cable, a triangle three, a ring four.
TOPOLOGY = {(2, 1): "pair", (3, 3): "triangle", (4, 4): "ring"}


class InForceError(Refusal):
    """The nodes' records do not make up one plan."""


def plan_in_force(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A fabric plan from ``{node: content of /etc/sparkmesh/fabric.json}``, for ``fabric_diff``.

    Each record is one entry of a plan's nodes with the MTU in bytes as ``mtu``. Raises ``InForceError`` when the nodes
    disagree on the MTU, or when a cable is known at one end only.
    """
    problems = []
    mtus = {node: record["mtu"] for node, record in records.items()}
    if len(set(mtus.values())) > 1:
        problems.append(f"the nodes keep different MTUs {mtus}: run the fabric playbook")
    ends: dict[str, list[dict[str, str]]] = {}
    for node, record in records.items():
        for link in record["links"]:
            if link["lane"] == 0:
                ends.setdefault(link["cable"], []).append({"node": node, "cage": link["cage"]})
    for cable, known in ends.items():
        if len(known) != 2:
            node = known[0]["node"]
            problems.append(f"cable {cable} is recorded by {node} alone: run the fabric playbook on all nodes")
    if problems:
        raise InForceError(problems)
    return {
        "topology": TOPOLOGY.get((len(records), len(ends)), f"{len(records)} nodes, {len(ends)} cables"),
        "mtu": next(iter(mtus.values()), 0),
        "cables": [{"id": cable, "ends": known} for cable, known in sorted(ends.items())],
        "nodes": {
            node: {key: value for key, value in record.items() if key != "mtu"} for node, record in records.items()
        },
    }
