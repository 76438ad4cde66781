"""Fabric links on a model of a node: netplan and ip are played over the netplan files in a directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkmesh.cluster.plugins.module_utils import netplan
from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_apply import (
    PLAN_FILE,
    Fabric,
    FabricError,
    revert,
)
from ansible_collections.sparkmesh.cluster.plugins.module_utils.journal import Journal
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import CommandFailed, Reader, Result

PORTS = {"enp1s0f0np0": "p0", "enP2p1s0f0np0": "p0", "enp1s0f1np1": "p1", "enP2p1s0f1np1": "p1"}
FOREIGN = "# by hand\nnetwork:\n  version: 2\n  ethernets:\n    enp1s0f0np0: {addresses: [192.168.100.1/24]}\n"
MANAGEMENT = (
    "network:\n  version: 2\n  renderer: NetworkManager\n  ethernets:\n    enP7s7: {addresses: [10.0.0.11/24]}\n"
)


def link(interface: str, address: str, peer: str = "spark-2") -> dict[str, Any]:
    cage, lane = PORTS[interface], int(interface.startswith("enP2"))
    return {
        "cable": f"spark-1:{cage}--{peer}:p1", "lane": lane, "cage": cage, "interface": interface,
        "hca": "roce" + interface[2:-3], "address": address, "prefix": 24, "peer": peer,
        "peer_interface": "enp1s0f1np1", "peer_address": address.rsplit(".", 1)[0] + ".12",
    }  # fmt: skip


PLAN: dict[str, Any] = {
    "rank": 0,
    "links": [link("enp1s0f0np0", "10.20.8.11"), link("enP2p1s0f0np0", "10.20.9.11")],
    "next_hop": {},
}


class Node:
    """Interfaces with addresses; ``netplan apply`` gives what the files say, unless told to misbehave."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, ...]] = []
        self.reject_generate = False
        self.on_apply: Callable[[], None] = lambda: None
        self.put("proc/net/route", "Iface\nenP7s7\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n")
        self.put("etc/netplan/01-management.yaml", MANAGEMENT)
        for name in [*PORTS, "enP7s7"]:
            self.add(name)
        self.state["enP7s7"]["addresses"] = ["10.0.0.11/24"]

    def put(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def add(self, name: str) -> None:
        self.state[name] = {"mtu": 1500, "flags": ["UP", "LOWER_UP"], "addresses": []}
        self.put(f"sys/class/net/{name}/carrier", "1\n")
        self.put(f"sys/class/net/{name}/address", f"02:00:00:00:00:{len(self.state):02x}\n")
        if name in PORTS:
            self.put(f"sys/class/net/{name}/phys_port_name", PORTS[name] + "\n")

    def __call__(self, command: Sequence[str], *, check: bool = True, **_: Any) -> Result:
        argv = tuple(command)
        self.calls.append(argv)
        if argv[:2] == ("netplan", "generate") and self.reject_generate:
            self.reject_generate = False
            raise CommandFailed("`netplan generate` ended with status 78, wanted 0: bad key", rc=78)
        if argv[:2] == ("netplan", "apply"):
            self._apply()
        return Result(argv, 0, self._ip(argv[1:]) if argv[0] == "ip" else "", "")

    def _apply(self) -> None:
        for file in sorted((self.root / "etc/netplan").glob("*.yaml")):
            for name, body in (yaml.safe_load(file.read_text())["network"].get("ethernets") or {}).items():
                state = self.state[name]
                if "LOWER_UP" in state["flags"]:
                    state["addresses"] += [a for a in body.get("addresses", []) if a not in state["addresses"]]
                state["mtu"] = body.get("mtu", state["mtu"])
        hook, self.on_apply = self.on_apply, lambda: None
        hook()

    def _ip(self, argv: tuple[str, ...]) -> str:
        if "link" in argv and "show" in argv:
            return json.dumps([{"ifname": n, "mtu": s["mtu"], "flags": s["flags"]} for n, s in self.state.items()])
        if "show" in argv:
            return json.dumps(
                [
                    {"ifname": name, "addr_info": [
                        {"local": a.split("/")[0], "prefixlen": int(a.split("/")[1]), "scope": "global"}
                        for a in state["addresses"]]}
                    for name, state in self.state.items()
                    if state["addresses"]
                ]
            )  # fmt: skip
        if argv[:2] == ("address", "del"):
            self.state[argv[4]]["addresses"].remove(argv[2])
        elif argv[:2] == ("address", "add"):
            self.state[argv[4]]["addresses"].append(argv[2])
        elif argv[:2] == ("link", "set"):
            self.state[argv[3]]["mtu"] = int(argv[5])
        return ""

    def live(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        return {name: (state["mtu"], tuple(sorted(state["addresses"]))) for name, state in self.state.items()}

    def files(self) -> dict[str, tuple[int, bytes]]:
        return {
            f"/{file.relative_to(self.root)}": (file.stat().st_mode & 0o777, file.read_bytes())
            for file in (self.root / "etc").rglob("*")
            if file.is_file()
        }

    def fabric(self, plan: dict[str, Any] = PLAN, **options: Any) -> Fabric:
        options = {"verify_timeout": 0.0, **options}
        return Fabric(plan, 9000, Reader(self.root, self), Journal("fabric", self.root), self, **options)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def apply(node: Node, plan: dict[str, Any] = PLAN, **options: Any) -> Fabric:
    fabric = node.fabric(plan, **options)
    fabric.prepare()
    fabric.apply()
    fabric.record_plan()
    return fabric


def test_fresh_node_can_be_looked_at_without_a_change(node: Node) -> None:
    before = node.files()
    fabric = node.fabric()
    fabric.prepare()
    pending = fabric.disruptions()
    assert pending[0] == f"write {netplan.FABRIC_FILE}" and "no address" in " ".join(pending)
    assert "+      addresses: [10.20.8.11/24]" in fabric.diff_text()
    assert node.files() == before and not any(argv[0] == "netplan" for argv in node.calls)


def test_apply_then_nothing_then_back(node: Node) -> None:
    files, live = node.files(), node.live()
    apply(node)
    mode, content = node.files()[netplan.FABRIC_FILE]
    assert mode == 0o600
    assert yaml.safe_load(content)["network"]["ethernets"]["enP2p1s0f0np0"] == {
        "renderer": "NetworkManager", "dhcp4": False, "dhcp6": False, "accept-ra": False, "link-local": [],
        "optional": True, "mtu": 9000, "addresses": ["10.20.9.11/24"],
    }  # fmt: skip
    assert "renderer" not in yaml.safe_load(content)["network"]
    assert node.live()["enp1s0f0np0"] == (9000, ("10.20.8.11/24",))
    assert json.loads(node.files()[PLAN_FILE][1])["links"] == PLAN["links"]
    again = node.fabric()
    again.prepare()
    assert again.disruptions() == [] and not again.plan_differs() and again.diffs() == []
    revert(Reader(node.root, node), Journal("fabric", node.root), node)
    assert node.files() == files and node.live() == live
    assert Journal("fabric", node.root).kept == []


def test_recabled_node_loses_the_address_of_the_left_port(node: Node) -> None:
    apply(node)
    moved = {**PLAN, "links": [link("enp1s0f1np1", "10.20.8.11"), link("enP2p1s0f1np1", "10.20.9.11")]}
    fabric = apply(node, moved)
    assert node.live()["enp1s0f0np0"][1] == ()
    assert node.live()["enp1s0f1np1"] == (9000, ("10.20.8.11/24",))
    assert any("removed 10.20.8.11/24 from enp1s0f0np0" in action for action in fabric.actions)


def test_stale_address_is_taken_away(node: Node) -> None:
    node.state["enp1s0f0np0"]["addresses"] = ["192.168.100.1/24"]
    apply(node)
    assert node.live()["enp1s0f0np0"][1] == ("10.20.8.11/24",)


@pytest.mark.parametrize("fault", ["generate", "mtu", "management", "vanished"])
def test_failure_brings_back_bytes_addresses_and_mtu(node: Node, fault: str) -> None:
    node.state["enp1s0f0np0"].update(addresses=["192.168.100.1/24"], mtu=4200)
    node.put("etc/netplan/50-x.yaml", FOREIGN).chmod(0o640)
    files, live = node.files(), node.live()

    def lose_management() -> None:
        node.state["enP7s7"]["addresses"] = []

    if fault == "generate":
        node.reject_generate = True
    elif fault == "mtu":
        node.on_apply = lambda: node.state["enP2p1s0f0np0"].update(mtu=1500)
    elif fault == "management":
        node.on_apply = lose_management
    else:
        node.on_apply = lambda: node.state["enP2p1s0f0np0"].update(addresses=[])
    fabric = node.fabric(adopt_foreign=True)
    fabric.prepare()
    with pytest.raises(FabricError) as failed:
        fabric.apply()
    assert "byte for byte as before and applied again" in str(failed.value)
    named = {"generate": "bad key", "mtu": "MTU 1500", "management": "lost 10.0.0.11/24", "vanished": "10.20.9.11/24"}
    assert named[fault] in str(failed.value)
    assert node.files() == files and node.live() == live
    assert node.calls.count(("netplan", "apply")) == (1 if fault == "generate" else 2)


def test_rollback_gives_back_an_address_that_no_file_has(node: Node) -> None:
    node.state["enp1s0f0np0"]["addresses"] = ["192.168.100.1/24"]
    live = node.live()
    node.on_apply = lambda: node.state["enP2p1s0f0np0"].update(mtu=1500)
    fabric = node.fabric()
    fabric.prepare()
    with pytest.raises(FabricError, match="addresses and MTUs are those of before"):
        fabric.apply()
    assert node.live() == live


def test_rollback_to_the_plan_before(node: Node) -> None:
    apply(node)
    files, live = node.files(), node.live()
    node.on_apply = lambda: node.state["enp1s0f1np1"].update(mtu=1500)
    moved = {**PLAN, "links": [link("enp1s0f1np1", "10.20.8.11"), PLAN["links"][1]]}
    fabric = node.fabric(moved)
    fabric.prepare()
    with pytest.raises(FabricError, match="enp1s0f1np1 has MTU 1500, wanted 9000"):
        fabric.apply()
    assert node.files() == files and node.live() == live


def test_unplugged_port_waits_instead_of_undoing_the_rest(node: Node) -> None:
    node.state["enP2p1s0f0np0"]["flags"] = ["UP", "NO-CARRIER"]
    fabric = apply(node)
    assert fabric.waiting == ["enP2p1s0f0np0 has no carrier and gets 10.20.9.11/24 when its cable is in"]
    assert node.live()["enp1s0f0np0"][1] == ("10.20.8.11/24",)


def test_foreign_file_is_refused_then_adopted_then_given_back(node: Node) -> None:
    path = "/etc/netplan/40-cx7.yaml"
    node.put(path.lstrip("/"), FOREIGN).chmod(0o644)
    files = node.files()
    with pytest.raises(FabricError, match=r"40-cx7\.yaml: ethernets\.enp1s0f0np0 .*fabric_adopt_foreign: true"):
        node.fabric().prepare()
    apply(node, adopt_foreign=True)
    assert yaml.safe_load(node.files()[path][1]) == {"network": {"version": 2}}
    assert node.live()["enp1s0f0np0"][1] == ("10.20.8.11/24",)
    revert(Reader(node.root, node), Journal("fabric", node.root), node)
    assert node.files() == files
    assert node.live()["enp1s0f0np0"][1] == ("192.168.100.1/24",) or "192.168.100.1/24" in node.live()["enp1s0f0np0"][1]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("ethernets: {all: {match: {name: 'enp1s0*'}, dhcp4: true}}", "ethernets.all"),
        ("bonds: {bond0: {interfaces: [enp1s0f0np0]}}", "bonds.bond0"),
        ("vlans: {v7: {id: 7, link: enP2p1s0f0np0}}", "vlans.v7"),
    ],
)
def test_what_covers_more_than_the_fabric_is_never_adopted(node: Node, body: str, named: str) -> None:
    node.put("etc/netplan/70-x.yaml", f"network: {{version: 2, {body}}}\n")
    with pytest.raises(FabricError) as refused:
        node.fabric(adopt_foreign=True).prepare()
    assert named in str(refused.value) and "70-x.yaml" in str(refused.value)


def test_every_refusal_is_named_at_once(node: Node) -> None:
    shutil.rmtree(node.root / "sys/class/net/enp1s0f0np0")
    node.put("sys/class/net/enP2p1s0f0np0/upper_bond0/x", "")
    with pytest.raises(FabricError) as refused:
        node.fabric().prepare()
    text = str(refused.value)
    assert "no interface enp1s0f0np0 (cage p0, lane 0, cable spark-1:p0--spark-2:p1)" in text
    assert "enp1s0f1np1 (p1, carrier)" in text and "part of bond0" in text


@pytest.mark.parametrize("way", ["route", "address", "ssh"])
def test_the_way_in_is_never_fabric(node: Node, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    node.state["enp1s0f0np0"]["addresses"] = ["10.9.9.9/24"]
    options: dict[str, Any] = {}
    if way == "route":
        node.put("proc/net/route", "Iface\nenp1s0f0np0\t00000000\t0100000A\t0003\t0\t0\t9\t00000000\t0\t0\t0\n")
    elif way == "address":
        options["management_address"] = "10.9.9.9"
    else:
        monkeypatch.setattr(
            "ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_live._ssh_server_addresses",
            lambda _: {"10.9.9.9"},
        )
    with pytest.raises(FabricError, match=r"enp1s0f0np0 .*carries (the default route|this SSH|the management)"):
        node.fabric(**options).prepare()


def test_broken_foreign_yaml_is_named(node: Node) -> None:
    node.put("etc/netplan/99-broken.yaml", "network: [\n")
    with pytest.raises(netplan.NetplanError, match=r"99-broken\.yaml is no YAML"):
        node.fabric().prepare()
