"""The fabric plan: what any valid cabling must give, and what any broken one must be refused for."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_plan import (
    PlanError,
    fabric_plan,
    hosts_names,
    nccl_hcas,
    nccl_profile,
)
from hypothesis import given, settings
from hypothesis import strategies as st

SIZES = {"pair": 2, "triangle": 3, "ring": 4}
TRIANGLE = {"spark-1": 0, "spark-2": 1, "spark-3": 2}
TRIANGLE_CABLES = ["spark-1:p0 spark-2:p1", "spark-2:p0 spark-3:p1", "spark-3:p0 spark-1:p1"]
RING = {**TRIANGLE, "spark-4": 3}
RING_CABLES = [*TRIANGLE_CABLES[:2], "spark-3:p0 spark-4:p1", "spark-4:p0 spark-1:p1"]

Cabling = tuple[dict[str, int], str, list[str]]


@st.composite
def cablings(draw: st.DrawFn) -> Cabling:
    """``(ranks, topology, cables)``: awkward names, any cage at any end, cables and ends written in any order."""
    topology = draw(st.sampled_from(sorted(SIZES)))
    names = ["spark-1", "spark-2", "spark-10", "a", "b.example", "node_7", "Zeta", "9"]
    nodes = draw(st.permutations(names))[: SIZES[topology]]
    forward = {node: draw(st.sampled_from(["p0", "p1"])) for node in nodes}
    back = {node: "p1" if cage == "p0" else "p0" for node, cage in forward.items()}
    if topology == "pair":
        back = {node: draw(st.sampled_from(["p0", "p1"])) for node in nodes}
    texts = []
    for place in range(1 if topology == "pair" else len(nodes)):
        here, there = nodes[place], nodes[(place + 1) % len(nodes)]
        texts.append(" ".join(draw(st.permutations([f"{here}:{forward[here]}", f"{there}:{back[there]}"]))))
    ranks = {node: nodes.index(node) for node in draw(st.permutations(nodes))}
    return ranks, topology, draw(st.permutations(texts))


def links_of(plan: Any) -> list[tuple[str, Any]]:
    return [(node, link) for node, entry in plan["nodes"].items() for link in entry["links"]]


def problems_of(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(PlanError) as refused:
        fabric_plan(*args, **kwargs)
    assert refused.value.problems
    assert str(refused.value) == "\n".join(refused.value.problems)
    return str(refused.value)


@settings(max_examples=60, deadline=None)
@given(cablings(), st.sampled_from(["10.20.0.0/16", "192.168.64.0/18", "172.16.0.0/12"]))
def test_every_subnet_is_at_exactly_the_two_ends_of_one_lane(cabling: Cabling, pool: str) -> None:
    ranks, topology, cables = cabling
    plan = fabric_plan(ranks, topology, pool, cables=cables)
    at: dict[Any, list[tuple[str, Any]]] = {}
    for node, link in links_of(plan):
        network = ipaddress.IPv4Interface(f"{link['address']}/{link['prefix']}").network
        at.setdefault(network, []).append((node, link))
        assert network.subnet_of(ipaddress.IPv4Network(pool))
        assert link["address"].endswith(f".{11 + ranks[node]}")
    assert len(at) == 2 * len(cables)
    assert not any(one != other and one.overlaps(other) for one in at for other in at)
    for (here, one), (there, other) in at.values():
        assert (one["peer"], other["peer"]) == (there, here)
        assert (one["cable"], one["lane"]) == (other["cable"], other["lane"])
        assert (one["peer_interface"], one["peer_address"]) == (other["interface"], other["address"])
    addresses = [link["address"] for _node, link in links_of(plan)]
    assert len(set(addresses)) == len(addresses)
    assert sorted(hosts_names(plan)) == sorted(addresses)
    assert len(set(hosts_names(plan).values())) == len(addresses)


@settings(max_examples=60, deadline=None)
@given(cablings())
def test_interface_and_hca_name_cage_and_lane(cabling: Cabling) -> None:
    ranks, topology, cables = cabling
    plan = fabric_plan(ranks, topology, cables=cables)
    names = {
        ("p0", 0): ("enp1s0f0np0", "rocep1s0f0"),
        ("p0", 1): ("enP2p1s0f0np0", "roceP2p1s0f0"),
        ("p1", 0): ("enp1s0f1np1", "rocep1s0f1"),
        ("p1", 1): ("enP2p1s0f1np1", "roceP2p1s0f1"),
    }
    for node, link in links_of(plan):
        assert (link["interface"], link["hca"]) == names[link["cage"], link["lane"]]
        assert any(f"{node}:{link['cage']}" in text.split() for text in cables)
    for entry in plan["nodes"].values():
        interfaces = [link["interface"] for link in entry["links"]]
        assert len(set(interfaces)) == len(interfaces)


@settings(max_examples=60, deadline=None)
@given(cablings())
def test_next_hop_reaches_everybody_along_cables_by_the_shortest_way(cabling: Cabling) -> None:
    ranks, topology, cables = cabling
    plan = fabric_plan(ranks, topology, cables=cables)
    owner = {link["address"]: node for node, link in links_of(plan)}
    for node in ranks:
        assert set(plan["nodes"][node]["next_hop"]) == set(ranks) - {node}
        neighbours = {link["peer"] for link in plan["nodes"][node]["links"]}
        for target in set(ranks) - {node}:
            here, steps = node, 0
            while here != target:
                hop = plan["nodes"][here]["next_hop"][target]
                assert hop in {link["peer_address"] for link in plan["nodes"][here]["links"]}
                here, steps = owner[hop], steps + 1
                assert steps <= len(ranks)
            assert steps == (1 if target in neighbours else 2)


@settings(max_examples=60, deadline=None)
@given(cablings(), st.randoms())
def test_order_of_writing_does_not_matter(cabling: Cabling, random: Any) -> None:
    ranks, topology, cables = cabling
    plan = fabric_plan(ranks, topology, cables=cables)
    again = [" ".join(random.sample(text.split(), 2)) for text in random.sample(cables, len(cables))]
    names = dict(random.sample(sorted(ranks.items()), len(ranks)))
    assert fabric_plan(names, topology, cables=again) == plan
    assert json.loads(json.dumps(plan)) == plan


@settings(max_examples=60, deadline=None)
@given(cablings(), st.data())
def test_exchanging_the_cages_of_one_node_changes_only_its_cables(cabling: Cabling, data: st.DataObject) -> None:
    ranks, topology, cables = cabling
    node = data.draw(st.sampled_from(sorted(ranks)))
    flip = {f"{node}:p0": f"{node}:p1", f"{node}:p1": f"{node}:p0"}
    moved = [" ".join(flip.get(end, end) for end in text.split()) for text in cables]
    before, after = fabric_plan(ranks, topology, cables=cables), fabric_plan(ranks, topology, cables=moved)
    untouched = [text for text in cables if not any(end in flip for end in text.split())]

    def of(plan: Any) -> list[tuple[str, Any]]:
        ends = {end for text in untouched for end in text.split()}
        return [(name, link) for name, link in links_of(plan) if f"{name}:{link['cage']}" in ends]

    assert of(before) == of(after)
    assert len(of(before)) == 4 * len(untouched)
    assert {link["cable"] for _n, link in links_of(before)} & {link["cable"] for _n, link in links_of(after)} == {
        link["cable"] for _n, link in of(before)
    }


@settings(max_examples=60, deadline=None)
@given(cablings())
def test_same_cage_cables_are_warned_of_where_nccl_minds(cabling: Cabling) -> None:
    ranks, topology, cables = cabling
    plan = fabric_plan(ranks, topology, cables=cables)
    same = [text for text in cables if len({end[-2:] for end in text.split()}) == 1]
    assert len(plan["warnings"]) == (0 if topology == "pair" else len(same))
    for text in same if topology != "pair" else []:
        assert any(all(end in warning for end in text.split()) and "110" in warning for warning in plan["warnings"])


def corruptions(ranks: dict[str, int], topology: str, cables: list[str]) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Name → (arguments with one thing broken, what the message must name)."""
    first, last = sorted(ranks, key=lambda node: ranks[node])[0], sorted(ranks, key=lambda node: ranks[node])[-1]
    victim = cables[0]
    one, other = victim.split()
    good: dict[str, Any] = {"ranks": ranks, "topology": topology, "cables": cables}
    others = cables[1:]
    broken = {
        "duplicate rank": ({**good, "ranks": {**ranks, last: 0}}, [first, last, "rank 0"]),
        "rank gap": ({**good, "ranks": {**ranks, last: 7}}, [last, "7"]),
        "negative rank": ({**good, "ranks": {**ranks, last: -1}}, [last, "-1"]),
        "rank as text": ({**good, "ranks": {**ranks, last: "1"}}, [last, "'1'"]),
        "rank as bool": ({**good, "ranks": {**ranks, first: False}}, [first, "False"]),
        "node too many": ({**good, "ranks": {**ranks, "extra": len(ranks)}}, [topology, "extra"]),
        "node too few": ({**good, "ranks": {k: v for k, v in ranks.items() if k != last}}, [topology, last]),
        "topology": ({**good, "topology": "star"}, ["star"]),
        "unknown cage": ({**good, "cables": [f"{one[:-2]}p2 {other}", *others]}, ["p2", one[:-3]]),
        "unknown node": ({**good, "cables": [f"nobody!:p0 {other}", *others]}, ["nobody!"]),
        "self cable": ({**good, "cables": [f"{one[:-2]}p0 {one[:-2]}p1", *others]}, [one[:-3], "itself"]),
        "one end": ({**good, "cables": [one, *others]}, [one]),
        "three ends": ({**good, "cables": [f"{victim} {one}", *others]}, [victim]),
        "not text": ({**good, "cables": [17, *others]}, ["17"]),
        "cable twice": ({**good, "cables": [*cables, victim]}, [one, other]),
        "missing cable": ({**good, "cables": others}, [one[:-3], other[:-3], "missing"]),
        "text for cables": ({**good, "cables": victim}, [victim]),
        "mtu small": ({**good, "mtu": 1499}, ["mtu is 1499"]),
        "mtu large": ({**good, "mtu": 9001}, ["mtu is 9001"]),
        "mtu text": ({**good, "mtu": "9000"}, ["'9000'"]),
        "pool small": ({**good, "pool": "10.20.0.0/19"}, ["10.20.0.0/19", "/18"]),
        "pool public": ({**good, "pool": "11.20.0.0/16"}, ["11.20.0.0/16"]),
        "pool loopback": ({**good, "pool": "127.0.0.0/16"}, ["127.0.0.0/16"]),
        "pool with host bits": ({**good, "pool": "10.20.0.1/16"}, ["10.20.0.1/16"]),
        "pool v6": ({**good, "pool": "fd00::/16"}, ["fd00::/16"]),
        "reserved inside": ({**good, "reserved": ["10.20.200.0/24"]}, ["10.20.0.0/16", "10.20.200.0/24"]),
        "reserved around": ({**good, "reserved": ["10.0.0.0/8"]}, ["10.0.0.0/8"]),
        "reserved wrong": ({**good, "reserved": ["everything"]}, ["everything"]),
    }
    if topology != "pair":
        free = [f"{one} {others[0].split()[0]}", *cables[1:]]
        broken["cage twice"] = ({**good, "cables": free}, [others[0].split()[0]])
    return broken


@settings(max_examples=25, deadline=None)
@given(cablings())
def test_any_single_corruption_is_refused_by_name(cabling: Cabling) -> None:
    fabric_plan(cabling[0], cabling[1], cables=cabling[2], reserved=["172.31.77.0/24"])
    for name, (arguments, words) in corruptions(*cabling).items():
        text = problems_of(**arguments)
        assert [word for word in words if word not in text] == [], (name, text)


def test_canonical_cabling() -> None:
    assert [cable["id"] for cable in fabric_plan({"a": 0, "b": 1}, "pair")["cables"]] == ["a:p0--b:p1"]
    assert fabric_plan(TRIANGLE, "triangle") == fabric_plan(TRIANGLE, "triangle", cables=TRIANGLE_CABLES)
    assert fabric_plan(RING, "ring") == fabric_plan(RING, "ring", cables=RING_CABLES)
    plan = fabric_plan(RING, "ring")
    assert plan["nodes"]["spark-1"]["links"][0]["address"] == "10.20.8.11"
    assert plan["order"] == ["spark-1", "spark-2", "spark-3", "spark-4"]
    assert plan["warnings"] == []


def test_ring_in_another_order_says_which_ranks_fit() -> None:
    cables = ["spark-1:p0 spark-3:p1", "spark-3:p0 spark-2:p1", "spark-2:p0 spark-4:p1", "spark-4:p0 spark-1:p1"]
    text = problems_of(RING, "ring", cables=cables)
    assert "spark-1=0, spark-3=1, spark-2=2, spark-4=3" in text
    fixed = {"spark-1": 0, "spark-3": 1, "spark-2": 2, "spark-4": 3}
    assert len(fabric_plan(fixed, "ring", cables=cables)["cables"]) == 4


def test_two_pairs_of_double_cables_are_no_ring() -> None:
    cables = ["spark-1:p0 spark-2:p1", "spark-1:p1 spark-2:p0", "spark-3:p0 spark-4:p1", "spark-3:p1 spark-4:p0"]
    text = problems_of(RING, "ring", cables=cables)
    assert "spark-1 and spark-2 share 2 cables" in text
    assert "between spark-2 and spark-3 is missing" in text
    assert "between spark-1 and spark-4 is missing" in text or "between spark-4 and spark-1 is missing" in text


def test_diagonal_is_named() -> None:
    text = problems_of(RING, "ring", cables=[*RING_CABLES[:2], "spark-3:p0 spark-1:p1"])
    assert '"spark-3:p0 spark-1:p1" joins spark-3 and spark-1' in text


def test_second_cable_of_a_pair_is_refused() -> None:
    assert "share 2 cables" in problems_of({"a": 0, "b": 1}, "pair", cables=["a:p0 b:p1", "a:p1 b:p0"])


def test_misspelt_node_gets_a_suggestion() -> None:
    cables = ["spark1:p0 spark-2:p1", *TRIANGLE_CABLES[1:]]
    assert "did you mean spark-1?" in problems_of(TRIANGLE, "triangle", cables=cables)


def test_all_problems_come_at_once() -> None:
    text = problems_of({"a": 0, "b": 0}, "triangle", "8.8.0.0/16", 100, ["a:p0 c:p9"])
    for word in ("rank 0", "triangle", "8.8.0.0/16", "100", '"c"', '"p9"'):
        assert word in text


def test_small_mtu_is_warned_of() -> None:
    assert "1500" in fabric_plan(TRIANGLE, "triangle", mtu=1500)["warnings"][0]
    assert fabric_plan(TRIANGLE, "triangle", mtu=4200)["warnings"] == []


@pytest.mark.parametrize("ranks", [None, ["a", "b"], "a"])
def test_ranks_of_another_kind(ranks: Any) -> None:
    assert "mapping" in problems_of(ranks, "pair")


def test_nccl_profiles_differ_where_the_cabling_does() -> None:
    pair, triangle, ring = (
        nccl_profile(fabric_plan({f"n{n}": n for n in range(size)}, topology)) for topology, size in SIZES.items()
    )
    assert "NCCL_IB_SUBNET_AWARE_ROUTING" not in pair
    assert triangle["NCCL_IB_SUBNET_AWARE_ROUTING"] == ring["NCCL_IB_SUBNET_AWARE_ROUTING"] == "1"
    assert "NCCL_ALGO" not in triangle
    assert ring["NCCL_ALGO"] == "Ring"
    assert ring["NCCL_CUMEM_ENABLE"] == "1" != triangle["NCCL_CUMEM_ENABLE"]
    assert ring["NCCL_MIN_NCHANNELS"] == ring["NCCL_MAX_NCHANNELS"] == "4"
    for profile in (pair, triangle, ring):
        assert "NCCL_IB_GID_INDEX" not in profile
        assert not [name for name in profile if "SWITCHLESS" in name]
        assert all(isinstance(value, str) and value for value in profile.values())


def test_nccl_uses_both_lanes_of_every_cabled_cage_and_no_other() -> None:
    pair = fabric_plan({"a": 0, "b": 1}, "pair")
    assert nccl_hcas(pair, "a") == "=rocep1s0f0,roceP2p1s0f0"
    assert nccl_hcas(pair, "b") == "=rocep1s0f1,roceP2p1s0f1"
    assert len(nccl_hcas(fabric_plan(RING, "ring"), "spark-4").split(",")) == 4
