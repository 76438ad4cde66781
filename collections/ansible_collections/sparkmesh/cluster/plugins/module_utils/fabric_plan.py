"""The fabric plan: from ranks and cables to every address on every node.

Two rules shape it. A lane of a cable has its own /24, present at exactly its two ends. And that /24 depends on the
cable's two ends alone, so moving a cable renumbers nothing else.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_diff import fabric_diff
from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_types import (
    CAGES,
    LANES,
    Cable,
    Cage,
    Lane,
    Link,
    Plan,
    PlanError,
    PlanNode,
    hca_name,
    interface_name,
)
from ansible_collections.sparkmesh.cluster.plugins.module_utils.nccl_profile import nccl_hcas, nccl_profile

__all__ = ["PlanError", "fabric_diff", "fabric_plan", "hosts_names", "nccl_hcas", "nccl_profile"]

SIZES: dict[str, int] = {"pair": 2, "triangle": 3, "ring": 4}
PREFIX = 24
FIRST_HOST = 11
# 1500 is the least at which RoCE still has a 1024-byte path; nothing is gained above 9000 and all published clusters
# stop there. From 4200 on RoCE reaches its largest path MTU, 4096; below, about 5 % of the bandwidth is lost.
MIN_MTU, FULL_MTU, MAX_MTU = 1500, 4200, 9000
# Four nodes have eight cages, counted from 1: 28 pairs of them, two networks a pair, numbers 2 to 57.
MAX_POOL_PREFIX = 18
# RFC 1918. Python's is_private also counts loopback, link-local and documentation ranges, which must not be cabled.
PRIVATE = tuple(ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))

_NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")

_End = tuple[str, Cage]
_Pair = tuple[_End, _End]


def fabric_plan(
    ranks: Mapping[str, int],
    topology: str,
    pool: str = "10.20.0.0/16",
    mtu: int = 9000,
    cables: Sequence[str] | None = None,
    *,
    reserved: Sequence[str] | None = None,
) -> Plan:
    """Plan the fabric of ``ranks`` (node → rank).

    ``cables`` is a list of ``"node:cage node:cage"``; ``None`` takes the canonical cabling, p0 of every rank to p1 of
    the next. ``pool`` is the private IPv4 network, /18 or larger, that gives the /24s; it must not overlap any network
    in ``reserved`` (management, Docker, VPN). ``mtu`` is in bytes.

    Raises ``PlanError`` with every problem found.
    """
    if not isinstance(ranks, Mapping):
        raise PlanError([f"ranks is {ranks!r}, wanted a mapping of node to rank"])
    problems = [*_rank_problems(ranks, topology), *_mtu_problems(mtu), *_pool_problems(pool, reserved or [])]
    pairs: list[_Pair] = []
    if cables is not None:
        pairs, cable_problems = _read_cables(cables, list(ranks))
        problems += cable_problems
    if problems:
        raise PlanError(problems)
    order = sorted(ranks, key=lambda node: ranks[node])
    if cables is None:
        pairs = _canonical(order)
    problems = _shape_problems(pairs, order, topology)
    if problems:
        raise PlanError(problems)
    return _build(pairs, order, topology, ipaddress.IPv4Network(pool), mtu)


def hosts_names(plan: Mapping[str, Any]) -> dict[str, str]:
    """Fabric address → ``<node>-<cage>-lane<n>``, for /etc/hosts and for readable reports."""
    return {
        link["address"]: f"{node}-{link['cage']}-lane{link['lane']}"
        for node in plan["order"]
        for link in plan["nodes"][node]["links"]
    }


def _rank_problems(ranks: Mapping[str, int], topology: str) -> list[str]:
    problems = [
        f'node "{node}": the name must be letters, digits, ".", "_" or "-", because cables are written node:cage'
        for node in ranks
        if not _NODE_NAME.fullmatch(node)
    ]
    owners: dict[int, list[str]] = {}
    for node, rank in ranks.items():
        if type(rank) is not int:
            problems.append(f"{node}: node_rank is {rank!r}, wanted a whole number from 0 on, without quotes")
        elif not 0 <= rank < len(ranks):
            problems.append(
                f"{node}: node_rank is {rank}, but {len(ranks)} nodes take the ranks 0 to {len(ranks) - 1}: renumber it"
            )
        else:
            owners.setdefault(rank, []).append(node)
    problems += [
        f"rank {rank} is claimed by {_and(nodes)}: give each its own node_rank"
        for rank, nodes in sorted(owners.items())
        if len(nodes) > 1
    ]
    if topology not in SIZES:
        problems.append(f"topology is {topology!r}, wanted one of {', '.join(SIZES)}")
    elif len(ranks) != SIZES[topology]:
        problems.append(
            f"a {topology} has {SIZES[topology]} nodes, the inventory has {len(ranks)} ({', '.join(ranks) or 'none'}): "
            "add or remove nodes, or set the topology that fits"
        )
    return problems


def _mtu_problems(mtu: object) -> list[str]:
    if type(mtu) is not int:
        return [f"mtu is {mtu!r}, wanted a whole number from {MIN_MTU} to {MAX_MTU}, without quotes"]
    if not MIN_MTU <= mtu <= MAX_MTU:
        return [f"mtu is {mtu}, wanted {MIN_MTU} to {MAX_MTU}: below, RoCE packets shrink; above, nothing is gained"]
    return []


def _network(text: object, what: str) -> tuple[ipaddress.IPv4Network | None, list[str]]:
    wanted = "wanted an IPv4 network such as 10.20.0.0/16"
    if not isinstance(text, str):
        return None, [f"{what} is {text!r}, {wanted}"]
    try:
        return ipaddress.IPv4Network(text), []
    except ValueError as error:
        return None, [f"{what} is {text!r}, {wanted}: {error}"]


def _pool_problems(pool: str, reserved: Sequence[str]) -> list[str]:
    network, problems = _network(pool, "pool")
    if network is not None and not any(network.subnet_of(private) for private in PRIVATE):
        problems.append(f"pool {pool} is not private: use a network inside {', '.join(map(str, PRIVATE))}")
    if network is not None and network.prefixlen > MAX_POOL_PREFIX:
        problems.append(
            f"pool {pool} is too small: a cable's networks depend on its ends alone, which takes a /{MAX_POOL_PREFIX} "
            "or larger"
        )
    for text in reserved:
        other, bad = _network(text, "reserved network")
        problems += bad
        if network is not None and other is not None and network.overlaps(other):
            problems.append(f"pool {pool} overlaps the reserved network {text}: choose another pool")
    return problems


def _read_cables(cables: Sequence[str], nodes: list[str]) -> tuple[list[_Pair], list[str]]:
    """Both ends of every well-formed cable, and what is wrong with the others or between them."""
    if isinstance(cables, str) or not isinstance(cables, Sequence):
        return [], [f'cables is {cables!r}, wanted a list of "node:cage node:cage"']
    pairs: list[_Pair] = []
    problems: list[str] = []
    users: dict[_End, list[str]] = {}
    for text in cables:
        ends, bad = _read_cable(text, nodes)
        if ends and ends[0][0] == ends[1][0]:
            bad.append(f'cable "{text}" joins {ends[0][0]} to itself: plug one end into another node')
        problems += bad
        if ends and not bad:
            pairs.append((ends[0], ends[1]))
            for end in ends:
                users.setdefault(end, []).append(f'"{text}"')
    problems += [
        f"cage {_end(end)} is used by {len(texts)} cables, {_and(texts)}: a cage takes one"
        for end, texts in users.items()
        if len(texts) > 1
    ]
    return pairs, problems


def _read_cable(text: object, nodes: list[str]) -> tuple[list[_End], list[str]]:
    parts = text.split() if isinstance(text, str) else []
    if len(parts) != 2 or not all(":" in part for part in parts):
        return [], [f'cable {text!r}: wanted two ends, "node:cage node:cage", such as "spark-1:p0 spark-2:p1"']
    ends: list[_End] = []
    problems: list[str] = []
    for part in parts:
        node, _colon, name = part.rpartition(":")
        cage = next((cage for cage in CAGES if cage == name), None)
        if node not in nodes:
            close = difflib.get_close_matches(node, nodes, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the nodes are {', '.join(nodes)}"
            problems.append(f'cable "{text}" names the unknown node "{node}": {hint}')
        if cage is None:
            problems.append(f'cable "{text}" names the unknown cage "{name}" of {node}: a Spark has p0 and p1')
        else:
            ends.append((node, cage))
    return ([] if problems else ends), problems


def _canonical(order: list[str]) -> list[_Pair]:
    count = 1 if len(order) == 2 else len(order)
    return [((order[n], "p0"), (order[(n + 1) % len(order)], "p1")) for n in range(count)]


def _shape_problems(pairs: list[_Pair], order: list[str], topology: str) -> list[str]:
    """Why the cables do not close the one cycle, in rank order, that the topology is."""
    cycle = _cycle(pairs, order)
    if topology == "ring" and cycle and cycle != order and cycle[:1] + cycle[:0:-1] != order:
        found, wanted = " - ".join([*cycle, cycle[0]]), ", ".join(f"{node}={n}" for n, node in enumerate(cycle))
        problem = (
            f"the cables close the ring {found}, but the ranks go {' - '.join(order)}: ranks that follow each other "
            f"must share a cable, or their traffic times out; set node_rank to {wanted}"
        )
        return [problem]
    neighbours = [tuple(sorted((order[n - 1], order[n]))) for n in range(1 if len(order) == 2 else 0, len(order))]
    joined: dict[tuple[str, ...], list[str]] = {pair: [] for pair in neighbours}
    problems: list[str] = []
    for first, second in pairs:
        pair = tuple(sorted((first[0], second[0])))
        if pair in joined:
            joined[pair].append(f'"{_end(first)} {_end(second)}"')
        else:
            problems.append(
                f'cable "{_end(first)} {_end(second)}" joins {first[0]} and {second[0]}, which are not neighbours in '
                f"the ring {' - '.join([*order, order[0]])}: move one end"
            )
    used = {end for pair in pairs for end in pair}
    for one, other in neighbours:
        texts = joined[one, other]
        if not texts:
            free = [_end((node, cage)) for node in (one, other) for cage in CAGES if (node, cage) not in used]
            problems.append(
                f"the cable between {one} and {other} is missing: a {topology} needs it"
                + (f"; free cages there: {', '.join(free)}" if free else "")
            )
        elif len(texts) > 1:
            problems.append(
                f"{one} and {other} share {len(texts)} cables, {_and(texts)}: a second one adds no speed; keep one"
            )
    return problems


def _cycle(pairs: list[_Pair], order: list[str]) -> list[str]:
    """The nodes around the single cycle that the cables close through all nodes, from rank 0; empty if they do not."""
    peers: dict[str, list[str]] = {node: [] for node in order}
    for (one, _a), (other, _b) in pairs:
        peers[one].append(other)
        peers[other].append(one)
    if any(len(set(near)) != 2 for near in peers.values()):
        return []
    walk = [order[0], min(peers[order[0]], key=order.index)]
    while (step := next(node for node in peers[walk[-1]] if node != walk[-2])) != walk[0]:
        walk.append(step)
    return walk if len(walk) == len(order) else []


def _build(pairs: list[_Pair], order: list[str], topology: str, pool: ipaddress.IPv4Network, mtu: int) -> Plan:
    def place(end: _End) -> int:
        return 2 * order.index(end[0]) + CAGES.index(end[1]) + 1

    cables: list[Cable] = []
    nodes: dict[str, PlanNode] = {node: {"rank": rank, "links": [], "next_hop": {}} for rank, node in enumerate(order)}
    warnings: list[str] = []
    ordered = [(min(pair, key=place), max(pair, key=place)) for pair in pairs]
    for low, high in sorted(ordered, key=lambda pair: (place(pair[0]), place(pair[1]))):
        cable_id = f"{_end(low)}--{_end(high)}"
        cables.append({"id": cable_id, "ends": [{"node": node, "cage": cage} for node, cage in (low, high)]})
        # The triangular number below the higher place, plus the lower place: no two pairs of cages share it.
        number = (place(high) - 1) * (place(high) - 2) // 2 + place(low)
        for lane in LANES:
            base = pool.network_address + 256 * (2 * number + lane) + FIRST_HOST
            for here, there in ((low, high), (high, low)):
                nodes[here[0]]["links"].append(_link((cable_id, lane), here, there, base, order))
        if low[1] == high[1] and topology != "pair":
            warnings.append(
                f"cable {cable_id} joins two {low[1]} cages: stock NCCL pairs port 0 with port 1 of the next node and "
                f"fails in a {topology} with ibv_modify_qp error 110; move one end to the other cage"
            )
    if mtu < FULL_MTU:
        warnings.append(f"mtu {mtu} keeps RoCE below 4096-byte packets and costs about 5 %: use {FULL_MTU} or more")
    for node in nodes.values():
        node["links"].sort(key=lambda link: (link["cage"], link["lane"]))
    for node_name, node in nodes.items():
        node["next_hop"] = {other: _next_hop(node_name, other, nodes, order) for other in order if other != node_name}
    return {"topology": topology, "mtu": mtu, "order": order, "cables": cables, "nodes": nodes, "warnings": warnings}


def _link(wire: tuple[str, Lane], here: _End, there: _End, base: ipaddress.IPv4Address, order: list[str]) -> Link:
    cable, lane = wire
    return {
        "cable": cable,
        "lane": lane,
        "cage": here[1],
        "interface": interface_name(here[1], lane),
        "hca": hca_name(here[1], lane),
        "address": str(base + order.index(here[0])),
        "prefix": PREFIX,
        "peer": there[0],
        "peer_interface": interface_name(there[1], lane),
        "peer_address": str(base + order.index(there[0])),
    }


def _next_hop(node: str, target: str, nodes: Mapping[str, PlanNode], order: list[str]) -> str:
    """Lane 0 address of the neighbour nearest to ``target``; of two equally near ones the lower rank."""
    distance, edge = {target: 0}, [target]
    while edge:
        here = edge.pop(0)
        for link in nodes[here]["links"]:
            if link["peer"] not in distance:
                distance[link["peer"]] = distance[here] + 1
                edge.append(link["peer"])
    ways = [link for link in nodes[node]["links"] if link["lane"] == 0]
    return min(ways, key=lambda link: (distance[link["peer"]], order.index(link["peer"])))["peer_address"]


def _end(end: _End) -> str:
    return f"{end[0]}:{end[1]}"


def _and(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"
