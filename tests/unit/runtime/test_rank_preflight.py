"""Each check against a small tree that looks like a node; then one fault at a time."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sparkmesh_runtime import preflight


def write(root: Path, path: str, text: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


@pytest.fixture
def spec(spec_of: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    return spec_of(0)


@pytest.fixture
def node(tmp_path: Path, spec: dict[str, Any]) -> preflight.Node:
    write(tmp_path, "proc/meminfo", "MemTotal: 125000000 kB\nMemAvailable: 6000000 kB\n")
    write(tmp_path, "proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n")
    addresses = {}
    for link in spec["fabric"]["links"]:
        addresses[link["interface"]] = {link["address"]}
        write(tmp_path, f"sys/class/net/{link['interface']}/mtu", "9000\n")
        third, fourth = (int(part) for part in link["address"].split(".")[2:])
        port = f"sys/class/infiniband/{link['hca']}/ports/1"
        for index, kind in ((2, "IB/RoCE v1"), (3, "RoCE v2")):
            write(tmp_path, f"{port}/gids/{index}", f"0000:0000:0000:0000:0000:ffff:0a14:{third:02x}{fourth:02x}\n")
            write(tmp_path, f"{port}/gid_attrs/types/{index}", f"{kind}\n")
    write(tmp_path, "models/tiny/main/config.json", "{}")
    write(tmp_path, "models/tiny/main/model.safetensors", "x" * 10)
    files = {"config.json": {"size": 2}, "model.safetensors": {"size": 10}}
    write(
        tmp_path,
        "models/tiny/main/.sparkmesh/manifest.json",
        json.dumps({"manifest": spec["model"]["manifest"], "files": files}),
    )
    return preflight.Node(
        tmp_path, {"SPARKMESH_IMAGE_IDENTITY": spec["image"]["identity"]}, lambda: addresses, lambda host, port: ""
    )


def failed(spec: dict[str, Any], node: preflight.Node) -> list[preflight.Check]:
    return [check for check in preflight.run(spec, node) if check.status == "fail"]


def test_a_good_node_passes_every_check(spec: dict[str, Any], node: preflight.Node) -> None:
    checks = preflight.run(spec, node)
    assert {check.status for check in checks} == {"ok"}, [check.line() for check in checks]
    assert [check.name.split()[0] for check in checks] == [
        "image.identity",
        "memory.available",
        *["fabric.address", "fabric.mtu", "fabric.gid"] * 2,
        "model.manifest",
        "model.files",
        "port.range",
        "port.master",
        "port.api",
    ]


def test_other_ranks_own_no_ports(spec_of: Any, node: preflight.Node) -> None:
    assert not [check for check in preflight.run(spec_of(1), node) if check.name.startswith("port.")]


@pytest.mark.parametrize(
    ("path", "text", "name", "seen"),
    [
        ("sys/class/net/enp1s0f0np0/mtu", "1500", "fabric.mtu enp1s0f0np0", "1500"),
        ("sys/class/infiniband/rocep1s0f0/ports/1/gid_attrs/types/3", "IB/RoCE v1", "fabric.gid rocep1s0f0", "none"),
        (
            "sys/class/infiniband/roceP2p1s0f0/ports/1/gids/3",
            "fe80:0000:0000:0000:0000:0000:0000:0001",
            "fabric.gid roceP2p1s0f0",
            "none",
        ),
        ("proc/meminfo", "MemAvailable: 5242879 kB", "memory.available", str(5242879 * 1024)),
        ("proc/meminfo", "MemFree: 5 kB", "memory.available", "unreadable"),
        ("models/tiny/main/model.safetensors", "x", "model.files", "model.safetensors 1, wanted 10"),
        (
            "models/tiny/main/.sparkmesh/manifest.json",
            '{"manifest": "sha256:0", "files": {"config.json": {"size": 2}}}',
            "model.manifest",
            "sha256:0",
        ),
        ("models/tiny/main/.sparkmesh/manifest.json", "[]", "model.manifest", "unusable"),
        ("proc/sys/net/ipv4/ip_local_port_range", "20000 60999", "port.range", "29501"),
    ],
)
def test_one_fault_one_failure(
    spec: dict[str, Any], node: preflight.Node, *, path: str, text: str, name: str, seen: str
) -> None:
    write(node.root, path, text)
    (found,) = failed(spec, node)
    assert found.name == name and seen in found.seen and found.fix and found.wanted


def test_a_missing_file_and_a_missing_manifest(spec: dict[str, Any], node: preflight.Node) -> None:
    (node.root / "models/tiny/main/config.json").unlink()
    assert [check.seen for check in failed(spec, node)] == ["config.json ENOENT, wanted 2"]
    (node.root / "models/tiny/main/.sparkmesh/manifest.json").unlink()
    assert [check.seen for check in failed(spec, node)] == ["no manifest"]


def test_an_address_on_the_wrong_interface(spec: dict[str, Any], node: preflight.Node) -> None:
    moved = replace(node, addresses=lambda: {"eth0": {spec["fabric"]["links"][0]["address"]}})
    seen = {check.name: check.seen for check in failed(spec, moved)}
    assert seen == {"fabric.address enp1s0f0np0": "eth0", "fabric.address enP2p1s0f0np0": "no interface has it"}


def test_another_image(spec: dict[str, Any], node: preflight.Node) -> None:
    assert [check.name for check in failed(spec, replace(node, environment={}))] == ["image.identity"]


def test_without_rdma_a_gid_is_unobserved_and_fails_only_where_nccl_relies_on_it(
    spec: dict[str, Any], node: preflight.Node, tmp_path: Path
) -> None:
    (tmp_path / "sys/class/infiniband").rename(tmp_path / "gone")
    gids = [check.status for check in preflight.run(spec, node) if check.name.startswith("fabric.gid")]
    assert gids == ["unobserved", "unobserved"] and not failed(spec, node)
    spec["node_environment"]["NCCL_IB_HCA"] = "=rocep1s0f0"
    assert len(failed(spec, node)) == 2
    spec["environment"]["NCCL_IB_DISABLE"] = "1"
    assert not failed(spec, node)


def test_a_pinned_gid_index_must_be_the_address(spec: dict[str, Any], node: preflight.Node) -> None:
    spec["environment"]["NCCL_IB_GID_INDEX"] = "3"
    assert not failed(spec, node)
    spec["environment"]["NCCL_IB_GID_INDEX"] = "5"
    assert [check.seen for check in failed(spec, node)] == ["index 3", "index 3"]


def test_a_port_in_use_is_seen_for_real(spec: dict[str, Any], node: preflight.Node) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert preflight.can_bind("127.0.0.1", port) == "EADDRINUSE"
        spec["api"] = {"host": "127.0.0.1", "port": port}
        spec["address"] = spec["head"]["address"] = "127.0.0.1"
        found = failed(spec, replace(node, bind=preflight.can_bind))
        assert [check.name for check in found] == [f"port.api 127.0.0.1:{port}"]
    assert preflight.can_bind("127.0.0.1", port) == ""
    assert preflight.can_bind("192.0.2.1", port) == "EADDRNOTAVAIL"


def test_the_kernel_tells_the_addresses_of_loopback() -> None:
    assert "127.0.0.1" in preflight.interface_addresses()["lo"]


def test_the_fix_is_named_on_failure_only() -> None:
    assert "fix" not in preflight.Check("a", "ok", "1", "1", "do it").line()
    assert preflight.Check("a", "fail", "1", "2", "do it").line() == "fail       a: seen 1, wanted 2; fix: do it"
