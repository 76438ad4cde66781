"""What changed between two fabric plans, in the words of somebody standing behind the rack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, TypedDict

from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_types import PlanError

_End = tuple[str, str]
_Ends = frozenset[_End]


class Change(TypedDict):
    """One difference. ``cable`` is the id in the new plan (the old one if removed), None where no cable is meant."""

    kind: str
    cable: str | None
    text: str


def fabric_diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Differences from plan ``old`` to plan ``new``; empty exactly when a node would be configured the same.

    Kinds: ``topology_changed node_added node_removed rank_changed mtu_changed`` of the whole, ``swapped`` (two cables
    over the same four cages, exchanged), ``moved_end`` (one cable, another cage), ``removed``, ``added``, and
    ``renumbered`` (same cages, other addresses).

    Raises ``PlanError`` if either is not a fabric plan.
    """
    problems = [
        f"the {which} plan has no {key}: pass what fabric_plan returned"
        for which, plan in (("old", old), ("new", new))
        for key in ("topology", "mtu", "cables", "nodes")
        if not isinstance(plan, Mapping) or key not in plan
    ]
    if problems:
        raise PlanError(problems)
    return [*_whole(old, new), *_cables(old, new)]


def _whole(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    if old["topology"] != new["topology"]:
        yield _change("topology_changed", None, f"the topology is {new['topology']}, it was {old['topology']}")
    for node in sorted(set(new["nodes"]) - set(old["nodes"])):
        yield _change("node_added", None, f"{node} joined with rank {new['nodes'][node]['rank']}")
    for node in sorted(set(old["nodes"]) - set(new["nodes"])):
        yield _change("node_removed", None, f"{node} left; it had rank {old['nodes'][node]['rank']}")
    for node in sorted(set(old["nodes"]) & set(new["nodes"])):
        before, after = old["nodes"][node]["rank"], new["nodes"][node]["rank"]
        if before != after:
            yield _change("rank_changed", None, f"{node} has rank {after}, it had rank {before}")
    if old["mtu"] != new["mtu"]:
        yield _change("mtu_changed", None, f"the MTU is {new['mtu']}, it was {old['mtu']}")


def _cables(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    before, after = _by_ends(old), _by_ends(new)
    gone = sorted(set(before) - set(after), key=lambda ends: before[ends])
    come = sorted(set(after) - set(before), key=lambda ends: after[ends])
    for was, now in _exchanges(gone, come):
        at = _common_node(was)
        where = f"at {at} the cables in p0 and p1 are exchanged" if at else "two cables exchanged their far ends"
        was_text = " and ".join(before[ends] for ends in was)
        for ends in now:
            yield _change("swapped", after[ends], f"{where}: {after[ends]} replaces {was_text}")
        gone = [ends for ends in gone if ends not in was]
        come = [ends for ends in come if ends not in now]
    # The same two nodes first: a cable pulled over to the other cage is likelier than one sent to another node.
    for like in (_same_nodes, _share_end):
        for was_ends in list(gone):
            now_ends = next((ends for ends in come if like(was_ends, ends)), None)
            if now_ends is not None:
                text = f"{before[was_ends]} is plugged as {after[now_ends]}"
                yield _change("moved_end", after[now_ends], text)
                gone.remove(was_ends)
                come.remove(now_ends)
    for ends in gone:
        yield _change("removed", before[ends], f"{before[ends]} is gone")
    for ends in come:
        yield _change("added", after[ends], f"{after[ends]} is new")
    for ends in sorted(set(before) & set(after), key=lambda ends: after[ends]):
        was_at, now_at = _addresses(old, before[ends]), _addresses(new, after[ends])
        if was_at != now_at:
            moved = ", ".join(
                f"{node} {interface} {was_at.get((node, interface), 'none')} to {address}"
                for (node, interface), address in now_at.items()
                if was_at.get((node, interface)) != address
            )
            yield _change("renumbered", after[ends], f"{after[ends]} keeps its cages and changes addresses: {moved}")


def _by_ends(plan: Mapping[str, Any]) -> dict[_Ends, str]:
    return {frozenset((end["node"], end["cage"]) for end in cable["ends"]): cable["id"] for cable in plan["cables"]}


def _exchanges(gone: list[_Ends], come: list[_Ends]) -> Iterator[tuple[tuple[_Ends, _Ends], tuple[_Ends, _Ends]]]:
    """Disjoint pairs of old cables that reappear as two new cables over the same four cages."""
    free_gone, free_come = list(gone), list(come)
    for was in combinations(gone, 2):
        for now in combinations(come, 2):
            free = set(was) <= set(free_gone) and set(now) <= set(free_come)
            if free and was[0] | was[1] == now[0] | now[1]:
                free_gone = [ends for ends in free_gone if ends not in was]
                free_come = [ends for ends in free_come if ends not in now]
                yield was, now


def _common_node(pair: tuple[_Ends, _Ends]) -> str | None:
    shared = {node for node, _cage in pair[0]} & {node for node, _cage in pair[1]}
    return min(shared) if len(shared) == 1 else None


def _same_nodes(one: _Ends, other: _Ends) -> bool:
    return {node for node, _cage in one} == {node for node, _cage in other}


def _share_end(one: _Ends, other: _Ends) -> bool:
    return bool(one & other)


def _addresses(plan: Mapping[str, Any], cable: str) -> dict[_End, str]:
    return {
        (name, link["interface"]): f"{link['address']}/{link['prefix']}"
        for name, node in sorted(plan["nodes"].items())
        for link in node["links"]
        if link["cable"] == cable
    }


def _change(kind: str, cable: str | None, text: str) -> Change:
    return {"kind": kind, "cable": cable, "text": text}
