"""The fabric proof against the ways a link fails in the field."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_proof import prove, unobserved
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import CommandFailed, Reader, Result

LINKS: list[dict[str, Any]] = [
    {"cable": "spark-1:p0--spark-2:p1", "lane": lane, "cage": "p0", "interface": name,
     "address": f"10.20.{8 + lane}.11",
     "prefix": 24, "peer": "spark-2", "peer_interface": peer, "peer_address": f"10.20.{8 + lane}.12"}
    for lane, name, peer in ((0, "enp1s0f0np0", "enp1s0f1np1"), (1, "enP2p1s0f0np0", "enP2p1s0f1np1"))
]  # fmt: skip
GOOD = "2 packets transmitted, 2 received, 0% packet loss, time 201ms\n"
HALF = "2 packets transmitted, 1 received, 50% packet loss, time 201ms\n"
LOST = "2 packets transmitted, 0 received, 100% packet loss, time 1012ms\n"


class Wire:
    """What ping and ip answer for lane 0; lane 1 is always healthy."""

    def __init__(self) -> None:
        self.jumbo = self.small = Result((), 0, GOOD, "")
        self.route: dict[str, Any] = {"dst": "10.20.8.12", "dev": "enp1s0f0np0", "prefsrc": "10.20.8.11"}
        self.macs = {"enp1s0f0np0": "02:00:00:00:0b:01", "enP2p1s0f0np0": "02:00:00:00:0b:03"}
        self.pings: list[tuple[str, ...]] = []

    def __call__(self, command: Sequence[str], **_: Any) -> Result:
        argv = tuple(command)
        lane0 = "10.20.8.12" in argv
        if argv[0] == "ping":
            self.pings.append(argv)
            if not lane0:
                return Result(argv, 0, GOOD, "")
            return self.jumbo if "8972" in argv else self.small
        if "route" in argv:
            return Result(argv, 0, json.dumps([self.route if lane0 else {"dev": "enP2p1s0f0np0"}]), "")
        name = argv[-1]
        # iproute2 6.1 leaves out "dev" when it was asked by dev.
        known = [
            {"dst": link["peer_address"], "lladdr": self.macs[name]} for link in LINKS if link["interface"] == name
        ]
        return Result(
            argv, 0, json.dumps(known if self.macs[name] else [{"dst": "10.20.8.12", "state": ["FAILED"]}]), ""
        )


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    for link in LINKS:
        base = tmp_path / "sys/class/net" / str(link["interface"])
        base.mkdir(parents=True)
        (base / "carrier").write_text("1\n")
        (base / "mtu").write_text("9000\n")
    return Reader(tmp_path)


def lane0(wire: Wire, reader: Reader, links: list[dict[str, Any]] = LINKS) -> dict[str, Any]:
    first, second = prove(links, 9000, reader, wire)
    assert second["ok"] is True
    return first


def test_healthy_links_are_pinged_bound_and_unfragmented(wire: Wire, reader: Reader) -> None:
    assert [item["status"] for item in prove(LINKS, 9000, reader, wire)] == ["ok", "ok"]
    assert len(wire.pings) == 2
    for link, argv in zip(LINKS, sorted(wire.pings, key=lambda a: a[-1]), strict=True):
        joined = " ".join(argv)
        assert f"-I {link['interface']} -M do -s 8972 {link['peer_address']}" in joined and "-c2" in argv


def test_peer_with_a_small_mtu(wire: Wire, reader: Reader) -> None:
    wire.jumbo = Result((), 1, LOST, "")
    found = lane0(wire, reader)
    assert found["ok"] is False and "small pings answered" in found["seen"]
    assert found["fix"].startswith("set MTU 9000 on spark-2 enp1s0f1np1")


def test_one_of_two_is_not_enough(wire: Wire, reader: Reader) -> None:
    wire.jumbo = wire.small = Result((), 0, HALF, "")
    found = lane0(wire, reader)
    assert found["status"] == "fail" and "50% packet loss" in found["seen"]


def test_silent_peer(wire: Wire, reader: Reader) -> None:
    wire.jumbo = wire.small = Result((), 1, LOST, "")
    found = lane0(wire, reader)
    assert "10.20.8.12 does not answer on enp1s0f0np0" in found["seen"] and "somewhere else" in found["fix"]


@pytest.mark.parametrize(
    ("route", "seen"),
    [
        ({"dev": "enP7s7", "gateway": "10.0.0.1"}, "routed over enP7s7"),
        ({"dev": "enp1s0f0np0", "gateway": "10.20.8.1"}, "through gateway 10.20.8.1"),
    ],
)
def test_answer_over_another_way_is_no_proof(wire: Wire, reader: Reader, route: dict[str, Any], seen: str) -> None:
    wire.route = route
    assert seen in lane0(wire, reader)["seen"]


def test_local_faults_come_before_any_ping(wire: Wire, reader: Reader) -> None:
    base = reader.root / "sys/class/net/enp1s0f0np0"
    (base / "mtu").write_text("1500\n")
    assert "has MTU 1500" in lane0(wire, reader)["seen"]
    (base / "carrier").write_text("0\n")
    assert "no carrier" in lane0(wire, reader)["seen"]
    assert all("10.20.8.12" not in argv for argv in wire.pings)


def test_neighbour_must_be_known_be_the_planned_one_and_answer_for_one_link(wire: Wire, reader: Reader) -> None:
    planned = [{**LINKS[0], "peer_mac": "02:00:00:00:0B:01"}, LINKS[1]]
    assert lane0(wire, reader, planned)["ok"] is True
    wire.macs["enp1s0f0np0"] = "02:00:00:00:0b:99"
    assert "wanted 02:00:00:00:0B:01" in lane0(wire, reader, planned)["seen"]
    wire.macs["enp1s0f0np0"] = ""
    assert "knows no neighbour" in lane0(wire, reader)["seen"]
    wire.macs["enp1s0f0np0"] = wire.macs["enP2p1s0f0np0"]
    assert [item["ok"] for item in prove(LINKS, 9000, reader, wire)] == [False, False]


def test_missing_ping_is_a_failure_with_its_name(reader: Reader, wire: Wire) -> None:
    def without_ping(command: Sequence[str], **options: Any) -> Result:
        if command[0] == "ping":
            raise CommandFailed("`ping` cannot start: ping is not installed", missing=True)
        return wire(command, **options)

    found = prove(LINKS, 9000, reader, without_ping)
    assert [item["fix"] for item in found] == ["install iputils-ping"] * 2


def test_unobserved_is_never_ok() -> None:
    assert {(item["ok"], item["status"]) for item in unobserved(LINKS, 9000, "pending change")} == {
        (None, "unobserved")
    }
