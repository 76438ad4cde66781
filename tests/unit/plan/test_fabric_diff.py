"""The words for what changed between two plans."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_plan import PlanError, fabric_diff, fabric_plan

TRIANGLE = {"a": 0, "b": 1, "c": 2}
RING = {**TRIANGLE, "d": 3}


def kinds(old: Any, new: Any) -> list[tuple[str, str | None]]:
    changes = fabric_diff(old, new)
    assert all(change["text"] for change in changes)
    return [(change["kind"], change["cable"]) for change in changes]


def test_nothing_changed() -> None:
    assert fabric_diff(fabric_plan(RING, "ring"), fabric_plan(RING, "ring")) == []


def test_cages_exchanged_at_one_node() -> None:
    new = fabric_plan(TRIANGLE, "triangle", cables=["a:p0 b:p0", "b:p1 c:p1", "c:p0 a:p1"])
    changes = fabric_diff(fabric_plan(TRIANGLE, "triangle"), new)
    assert [(change["kind"], change["cable"]) for change in changes] == [
        ("swapped", "a:p0--b:p0"),
        ("swapped", "b:p1--c:p1"),
    ]
    assert all("at b" in change["text"] for change in changes)


def test_far_ends_exchanged() -> None:
    before = fabric_plan(RING, "ring", cables=["a:p0 b:p1", "b:p0 c:p1", "c:p0 d:p1", "d:p0 a:p1"])
    ranks = {"a": 0, "c": 1, "b": 2, "d": 3}
    after = fabric_plan(ranks, "ring", cables=["a:p0 c:p0", "b:p0 c:p1", "b:p1 d:p1", "d:p0 a:p1"])
    found = fabric_diff(before, after)
    assert {change["cable"] for change in found if change["kind"] == "swapped"} == {"a:p0--c:p0", "b:p1--d:p1"}
    # The ids of the untouched cable follow the ranks, its ends do not change.
    assert [change["kind"] for change in found].count("rank_changed") == 2
    assert not [change for change in found if change["kind"] in ("added", "removed")]


@pytest.mark.parametrize("cable", ["a:p1 b:p1", "a:p0 b:p0", "a:p1 b:p0"])
def test_moved_to_another_cage(cable: str) -> None:
    ranks = {"a": 0, "b": 1}
    new = fabric_plan(ranks, "pair", cables=[cable])
    assert kinds(fabric_plan(ranks, "pair"), new) == [("moved_end", cable.replace(" ", "--"))]


def test_triangle_becomes_ring() -> None:
    found = kinds(fabric_plan(TRIANGLE, "triangle"), fabric_plan(RING, "ring"))
    assert ("topology_changed", None) in found
    assert ("node_added", None) in found
    assert ("moved_end", "a:p1--d:p0") in found or ("moved_end", "c:p0--d:p1") in found
    assert [kind for kind, _cable in found].count("added") == 1
    back = kinds(fabric_plan(RING, "ring"), fabric_plan(TRIANGLE, "triangle"))
    assert ("node_removed", None) in back
    assert [kind for kind, _cable in back].count("removed") == 1


def test_other_pool_renumbers_every_cable() -> None:
    old, new = fabric_plan(TRIANGLE, "triangle"), fabric_plan(TRIANGLE, "triangle", "10.30.0.0/16")
    assert [kind for kind, _cable in kinds(old, new)] == ["renumbered"] * 3
    assert "10.20.8.11/24 to 10.30.8.11/24" in fabric_diff(old, new)[0]["text"]


def test_mtu() -> None:
    assert kinds(fabric_plan(RING, "ring"), fabric_plan(RING, "ring", mtu=4200)) == [("mtu_changed", None)]


def test_exchanged_ranks_are_told_with_the_addresses() -> None:
    cables = ["a:p0 b:p1", "b:p0 c:p1", "c:p0 a:p1"]
    found = kinds(
        fabric_plan(TRIANGLE, "triangle", cables=cables),
        fabric_plan({"a": 0, "c": 1, "b": 2}, "triangle", cables=cables),
    )
    assert [kind for kind, _cable in found].count("rank_changed") == 2
    assert [kind for kind, _cable in found].count("renumbered") == 3


def test_something_else_than_a_plan() -> None:
    with pytest.raises(PlanError, match="old plan has no cables"):
        fabric_diff({}, fabric_plan(RING, "ring"))
