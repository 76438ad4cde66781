"""The scripts that run inside a lab node."""

import ipaddress
import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab import config, debootstrap
from lab.cabling import Cage


def load(name: str) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(config.NODE_FILES / name)))


def netdev(*addresses: str, state: str = "UP") -> dict[str, Any]:
    rows = [{"local": address} for address in addresses]
    return {"ifname": "x0", "ifindex": 7, "address": "02:73:6d:01:00:00", "operstate": state, "addr_info": rows}


def test_gid_table_is_that_of_a_connectx() -> None:
    table = load("fake-rdma").gids(netdev("10.20.8.11", "fe80::73:6dff:fe01:0"))
    assert table == [
        ("fe80:0000:0000:0000:0073:6dff:fe01:0000", "IB/RoCE v1"),
        ("fe80:0000:0000:0000:0073:6dff:fe01:0000", "RoCE v2"),
        ("0000:0000:0000:0000:0000:ffff:0a14:080b", "IB/RoCE v1"),
        ("0000:0000:0000:0000:0000:ffff:0a14:080b", "RoCE v2"),
    ]


def test_a_second_address_moves_nothing_and_no_address_leaves_the_slot_empty() -> None:
    rdma = load("fake-rdma")
    files = rdma.tree("rocep1s0f0", netdev("10.20.8.11", "10.20.8.99", state="DOWN"))
    assert files["ports/1/gids/3"].endswith("0a14:080b") and files["ports/1/gids/5"].endswith("0a14:0863")
    assert files["ports/1/state"] == "1: DOWN"
    empty = rdma.tree("rocep1s0f0", netdev())
    assert empty["ports/1/gids/3"] == rdma.ZERO and "ports/1/gid_attrs/types/3" not in empty


def test_every_lane_has_its_device() -> None:
    lanes = {Cage(1, cage).interface(lane) for cage in ("p0", "p1") for lane in (0, 1)}
    assert set(load("fake-rdma").DEVICES.values()) == lanes


def test_runc_configuration_loses_only_what_the_kernel_cannot_give(tmp_path: Path) -> None:
    runc = load("lab-runc")
    spec = {
        "process": {"args": ["x"], "rlimits": [{"type": "RLIMIT_MEMLOCK"}]},
        "linux": {"resources": {"memory": {"limit": 1}, "cpu": {}, "pids": {}, "devices": [{"allow": False}]}},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(spec))
    runc.relax(path)
    wanted = {"process": {"args": ["x"]}, "linux": {"resources": {"devices": [{"allow": False}]}}}
    assert json.loads(path.read_text()) == wanted


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["--root", "/r", "create", "--bundle", "/b", "id"], "/b"),
        (["run", "--bundle=/c", "id"], "/c"),
        (["kill", "id"], None),
    ],
)
def test_bundle_is_found(arguments: list[str], where: str | None) -> None:
    assert load("lab-runc").bundle(arguments) == where


def test_inner_docker_stays_off_the_labs_networks() -> None:
    settings = json.loads((config.NODE_FILES / "daemon.json").read_text())
    pools = [ipaddress.ip_network(pool["base"]) for pool in settings["default-address-pools"]]
    pools.append(ipaddress.ip_network(settings["bip"], strict=False))
    for taken in (config.SUBNET, "10.20.0.0/16"):
        assert not any(pool.overlaps(ipaddress.ip_network(taken)) for pool in pools)
    assert settings["insecure-registries"] == [config.SUBNET]


def test_image_key_follows_contents_names_and_modes(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    keys = {debootstrap.key(["s"], [file]), debootstrap.key(["t"], [file])}
    file.chmod(0o755)
    keys.add(debootstrap.key(["s"], [file]))
    file.write_text("2")
    keys.add(debootstrap.key(["s"], [file]))
    keys.add(debootstrap.key(["s"], [file.rename(tmp_path / "b")]))
    assert len(keys) == 5
    assert debootstrap.key(["s"], [tmp_path / "b"]) in keys
