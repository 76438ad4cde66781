"""The plan put together from the nodes' own records."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_in_force import InForceError, plan_in_force
from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_plan import fabric_diff, fabric_plan

RANKS = {"pair": {"a": 0, "b": 1}, "triangle": {"a": 0, "b": 1, "c": 2}, "ring": {"a": 0, "b": 1, "c": 2, "d": 3}}


def records(plan: Any) -> dict[str, dict[str, Any]]:
    """What the nodes keep after a plan was applied."""
    return {node: {**copy.deepcopy(entry), "mtu": plan["mtu"]} for node, entry in plan["nodes"].items()}


@pytest.mark.parametrize("topology", RANKS)
def test_records_of_a_plan_are_that_plan(topology: str) -> None:
    plan = fabric_plan(RANKS[topology], topology)
    found = plan_in_force(records(plan))
    assert (found["topology"], found["mtu"], found["nodes"]) == (topology, 9000, plan["nodes"])
    assert {cable["id"] for cable in found["cables"]} == {cable["id"] for cable in plan["cables"]}
    assert fabric_diff(found, plan) == []


def test_a_recabled_plan_differs_as_the_two_plans_do() -> None:
    old = fabric_plan(RANKS["triangle"], "triangle")
    new = fabric_plan(RANKS["triangle"], "triangle", cables=["a:p0 b:p0", "b:p1 c:p1", "c:p0 a:p1"])
    assert fabric_diff(plan_in_force(records(old)), new) == fabric_diff(old, new) != []


def test_another_mtu_on_one_node_is_refused() -> None:
    kept = records(fabric_plan(RANKS["pair"], "pair"))
    kept["b"]["mtu"] = 1500
    with pytest.raises(InForceError, match=r"\{'a': 9000, 'b': 1500\}: run the fabric playbook"):
        plan_in_force(kept)


def test_a_cable_known_at_one_end_is_refused_with_the_node() -> None:
    kept = records(fabric_plan(RANKS["pair"], "pair"))
    kept["b"]["links"] = []
    with pytest.raises(InForceError, match=r"cable a:p0--b:p1 is recorded by a alone"):
        plan_in_force(kept)


def test_both_refusals_are_said_at_once() -> None:
    kept = records(fabric_plan(RANKS["triangle"], "triangle"))
    del kept["c"]
    kept["a"]["mtu"] = 1500
    with pytest.raises(InForceError) as refused:
        plan_in_force(kept)
    assert len(refused.value.problems) == 3


def test_cables_that_make_no_known_topology_are_counted() -> None:
    plan = fabric_plan(RANKS["triangle"], "triangle")
    lost = plan["cables"][0]["id"]
    kept = records(plan)
    for record in kept.values():
        record["links"] = [link for link in record["links"] if link["cable"] != lost]
    assert plan_in_force(kept)["topology"] == "3 nodes, 2 cables"


def test_no_node_is_no_plan() -> None:
    assert plan_in_force({}) == {"topology": "0 nodes, 0 cables", "mtu": 0, "cables": [], "nodes": {}}
