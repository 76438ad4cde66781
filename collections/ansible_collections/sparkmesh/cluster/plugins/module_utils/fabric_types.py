"""The shapes of a fabric plan, its refusal, and the names a Spark gives its fabric functions."""

from __future__ import annotations

from typing import Literal, TypedDict

from ansible_collections.sparkmesh.cluster.plugins.module_utils.refusal import Refusal

Cage = Literal["p0", "p1"]
Lane = Literal[0, 1]

# Port 0 is the cage next to the RJ45 jack; the kernel shows the same names in phys_port_name.
CAGES: tuple[Cage, Cage] = ("p0", "p1")
# Lane 0 is the PCIe function in domain 0000, lane 1 the one in domain 0002.
LANES: tuple[Lane, Lane] = (0, 1)


class End(TypedDict):
    """One plugged end of a cable."""

    node: str
    cage: Cage


class Cable(TypedDict):
    """A cable; ``ends`` in rank order, ``id`` is ``node:cage--node:cage`` in the same order."""

    id: str
    ends: list[End]


class Link(TypedDict):
    """One lane of one cable as one node sees it; both ends share a /``prefix`` network."""

    cable: str
    lane: Lane
    cage: Cage
    interface: str
    hca: str
    address: str
    prefix: int
    peer: str
    peer_interface: str
    peer_address: str


class PlanNode(TypedDict):
    """What one node has to set up; ``next_hop`` maps every other node to the neighbour's address to ask."""

    rank: int
    links: list[Link]
    next_hop: dict[str, str]


class Plan(TypedDict):
    """The desired fabric: plain data, equal for equal cabling."""

    topology: str
    mtu: int
    order: list[str]
    cables: list[Cable]
    nodes: dict[str, PlanNode]
    warnings: list[str]


class PlanError(Refusal):
    """The input describes no fabric."""


def interface_name(cage: Cage, lane: Lane) -> str:
    """Network interface of a lane of a cage, as DGX OS names it."""
    number = CAGES.index(cage)
    return f"{('enp1s0f', 'enP2p1s0f')[lane]}{number}np{number}"


def hca_name(cage: Cage, lane: Lane) -> str:
    """RDMA device of a lane of a cage, as DGX OS names it."""
    return f"{('rocep1s0f', 'roceP2p1s0f')[lane]}{CAGES.index(cage)}"
