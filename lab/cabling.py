"""Cables between the nodes' cages, and hands that pull, plug and move them while everything runs.

Every cage has its two lanes from the start, cabled or not, as on a Spark: each lane is a veth device whose other end
lies in the patch panel, a container that only holds a network namespace. A cable is one two-port bridge a lane in the
panel. Pulling it leaves the node's device there without carrier, with its addresses and configuration, as a real pull.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from lab import config
from lab.engine import Engine
from lab.shell import LabError, attempt, run

MTU = 9000
LANES = (0, 1)
CAGES = ("p0", "p1")
# Bit 14 lets a bridge forward 01:80:c2:00:00:0e, the address LLDP uses; a cable would.
_FORWARD_LLDP = 1 << 14
_PREFIX = {0: "enp1s0", 1: "enP2p1s0"}
_END = re.compile(r"^s(\d)(p[01])l([01])$")
_CAGE = re.compile(r"^spark-(\d):(p[01])$")


@dataclass(frozen=True, order=True)
class Cage:
    """One QSFP port of one node."""

    node: int
    cage: str

    def __str__(self) -> str:
        return f"spark-{self.node}:{self.cage}"

    def end(self, lane: int) -> str:
        """Name of the lane's device in the panel."""
        return f"s{self.node}{self.cage}l{lane}"

    def interface(self, lane: int) -> str:
        """Name of the lane's device in the node, as DGX OS names it."""
        return f"{_PREFIX[lane]}f{self.cage[1]}n{self.cage}"

    def mac(self, lane: int) -> str:
        """A locally administered address that stays the same when the device is made again."""
        return f"02:73:6d:{self.node:02x}:{int(self.cage[1]):02x}:{lane:02x}"


@dataclass(frozen=True, order=True)
class Link:
    """One lane of one cable; ``a`` sorts before ``b``."""

    a: Cage
    b: Cage
    lane: int

    @property
    def bridge(self) -> str:
        return f"s{self.a.node}{self.a.cage}-s{self.b.node}{self.b.cage}-l{self.lane}"

    @property
    def ends(self) -> tuple[str, str]:
        return self.a.end(self.lane), self.b.end(self.lane)

    def has(self, cage: Cage) -> bool:
        return cage in (self.a, self.b)


def link(one: Cage, other: Cage, lane: int) -> Link:
    """A link between two cages whatever their order."""
    first, second = sorted((one, other))
    return Link(first, second, lane)


def parse_cage(text: str, count: int) -> Cage:
    """``spark-2:p1`` as a cage of a lab of ``count`` nodes; raises LabError for anything else."""
    match = _CAGE.match(text)
    if not match or not 1 <= int(match[1]) <= count:
        raise LabError(f"no cage is called {text!r}, wanted spark-1..spark-{count} with :p0 or :p1", "e.g. spark-1:p0")
    return Cage(int(match[1]), match[2])


def canonical(count: int) -> set[Link]:
    """The cabling of a closed chain: p0 of every node to p1 of the next, two lanes each."""
    pairs = [(Cage(n, "p0"), Cage(n % count + 1, "p1")) for n in range(1, count + 1)]
    return {link(one, other, lane) for one, other in pairs for lane in LANES}


def links_of(panel: Iterable[dict[str, object]]) -> set[Link]:
    """The links that the panel's devices (``ip -json link``) form."""
    by_bridge: dict[str, list[tuple[Cage, int]]] = {}
    for device in panel:
        match = _END.match(str(device.get("ifname")))
        if match and device.get("master"):
            by_bridge.setdefault(str(device["master"]), []).append((Cage(int(match[1]), match[2]), int(match[3])))
    return {link(ends[0][0], ends[1][0], ends[0][1]) for ends in by_bridge.values() if len(ends) == 2}


def replaced(links: Iterable[Link], old: Cage, new: Cage) -> set[Link]:
    """The links with every end in ``old`` put into ``new``."""
    return {link(new if e.a == old else e.a, new if e.b == old else e.b, e.lane) for e in links}


class Panel:
    """The patch panel of a running lab, known by the process ids that hold the network namespaces."""

    def __init__(self, pid: int, nodes: dict[int, int]) -> None:
        self.count = len(nodes)
        self._pid, self._nodes = pid, nodes

    @classmethod
    def of(cls, engine: Engine, count: int) -> Self:
        """The panel of a lab of ``count`` nodes; raises LabError when one of the holders does not run."""
        names = [config.PANEL, *(config.Node(n).pause for n in range(1, count + 1))]
        shown = engine.docker("container", "inspect", "--format", "{{json .State}}", *names)
        states = [json.loads(line) for line in shown.splitlines()]
        for name, state in zip(names, states, strict=True):
            if not state["Running"]:
                raise LabError(f"container {name} is {state['Status']}, wanted running", "python -m lab up")
        pids = [int(state["Pid"]) for state in states]
        return cls(pids[0], dict(enumerate(pids[1:], start=1)))

    def _ip(self, *arguments: str) -> str:
        return run(["nsenter", "-t", str(self._pid), "-n", "ip", *arguments])

    def _devices(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(self._ip("-json", "link", "show") or "[]")
        return [device for device in found if device]

    def _batch(self, commands: list[str]) -> None:
        if commands:
            run(["nsenter", "-t", str(self._pid), "-n", "ip", "-batch", "-"], stdin="\n".join(commands))

    def links(self) -> set[Link]:
        """The links as they are plugged now."""
        return links_of(self._devices())

    def ensure_cages(self) -> int:
        """Make the lanes that are missing, up and at MTU 9000 in the node; return how many."""
        ends = {str(device["ifname"]) for device in self._devices()}
        made = 0
        for node, pid in self._nodes.items():
            enter = ["nsenter", "-t", str(pid), "-n", "ip"]
            inside = {str(device["ifname"]) for device in json.loads(run([*enter, "-json", "link", "show"]))}
            for cage, lane in ((Cage(node, name), lane) for name in CAGES for lane in LANES):
                end, interface = cage.end(lane), cage.interface(lane)
                if end in ends and interface in inside:
                    continue
                if end in ends:
                    # Its other half lies in a namespace that is going away; it may be gone before we get there.
                    attempt(["nsenter", "-t", str(self._pid), "-n", "ip", "link", "del", end])
                panel = ["name", end, "mtu", str(MTU), "netns", str(self._pid)]
                peer = ["name", interface, "address", cage.mac(lane), "mtu", str(MTU), "netns", str(pid)]
                run(["ip", "link", "add", *panel, "type", "veth", "peer", *peer])
                run([*enter, "link", "set", interface, "up"])
                made += 1
        return made

    def plug(self, wanted: set[Link]) -> tuple[set[Link], set[Link]]:
        """Make the cabling exactly ``wanted``; return (pulled, plugged)."""
        devices = self._devices()
        present = links_of(devices)
        bridges = {entry.bridge for entry in wanted & present}
        stray = [str(d["ifname"]) for d in devices if str(d["ifname"]).count("-") == 2 and d["ifname"] not in bridges]
        commands = []
        for entry in sorted(present - wanted):
            for end in entry.ends:
                commands += [f"link set {end} nomaster", f"link set {end} down"]
        commands += [f"link del {name}" for name in stray]
        for entry in sorted(wanted - present):
            settings = f"stp_state 0 forward_delay 0 mcast_snooping 0 group_fwd_mask {_FORWARD_LLDP}"
            commands += [f"link add {entry.bridge} type bridge {settings}", f"link set {entry.bridge} up"]
            for end in entry.ends:
                commands += [f"link set {end} master {entry.bridge}", f"link set {end} up"]
        self._batch(commands)
        return present - wanted, wanted - present

    def at(self, cage: Cage, lanes: Iterable[int] = LANES) -> set[Link]:
        """The links in a cage; raises LabError when it is empty."""
        found = {entry for entry in self.links() if entry.has(cage) and entry.lane in lanes}
        if not found:
            raise LabError(f"no cable is plugged into {cage}", "python -m lab cable list")
        return found

    def cut(self, cage: Cage, lanes: Iterable[int] = LANES) -> set[Link]:
        """Pull the cable in ``cage`` (or only some of its lanes); return what was pulled."""
        return self.plug(self.links() - self.at(cage, lanes))[0]

    def restore(self, cage: Cage | None = None) -> set[Link]:
        """Plug the canonical cable of ``cage`` (all cables when None) again; return what was plugged."""
        present = self.links()
        wanted = {entry for entry in canonical(self.count) if cage is None or entry.has(cage)}
        if cage is not None:
            for entry in sorted(wanted - present):
                for other in sorted(present):
                    if entry.lane == other.lane and (other.has(entry.a) or other.has(entry.b)):
                        raise LabError(
                            f"{entry.a}--{entry.b} cannot be plugged: {other.a}--{other.b} is in the way",
                            f"cut {other.a} first, or `cable restore` without a cage puts all cables back",
                        )
            wanted |= present
        return self.plug(wanted)[1]

    def move(self, source: Cage, target: Cage) -> set[Link]:
        """Take the plug out of ``source`` and put it into the empty ``target``; return what was plugged."""
        moving = self.at(source)
        present = self.links()
        taken = sorted(entry for entry in present if entry.has(target))
        if taken:
            raise LabError(
                f"{target} is taken by {taken[0].a}--{taken[0].b}, wanted an empty cage",
                f"`cable swap {source} {target}` exchanges the two plugs, or cut {target} first",
            )
        return self.plug((present - moving) | replaced(moving, source, target))[1]

    def swap(self, one: Cage, other: Cage) -> set[Link]:
        """Exchange the plugs of two cages; return what was plugged."""
        present = self.links()
        first, second = self.at(one), self.at(other)
        if first & second:
            raise LabError(f"{one} and {other} are the two ends of one cable; swapping them changes nothing")
        changed = replaced(first, one, other) | replaced(second, other, one)
        return self.plug((present - first - second) | changed)[1]


def describe(links: Iterable[Link]) -> list[str]:
    """One text a cable, with its lanes when they are not all there."""
    lanes: dict[tuple[Cage, Cage], list[int]] = {}
    for entry in sorted(links):
        lanes.setdefault((entry.a, entry.b), []).append(entry.lane)
    return [
        f"{a}--{b}" + ("" if len(found) == len(LANES) else f" (only lane {found[0]})")
        for (a, b), found in sorted(lanes.items())
    ]
