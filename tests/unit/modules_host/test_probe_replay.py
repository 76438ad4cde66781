"""The probe against recorded GB10 trees, with the GID traps of the field."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.probe_fabric import SPARK_INTERFACES, ipv4_of_gid
from ansible_collections.sparkmesh.cluster.plugins.module_utils.probe_node import SECTIONS, read_node
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import Reader, Result

FIXTURES = Path(__file__).parents[2] / "fixtures"


def replay(name: str) -> dict[str, Any]:
    return read_node(SECTIONS, Reader(FIXTURES / name))


def test_healthy_node_is_read_whole() -> None:
    probe = replay("gb10_triangle_spark1")
    host = probe["host"]
    assert host["hostname"] == "spark-1"
    assert host["architecture"] == "aarch64"
    assert host["os"] == {"id": "ubuntu", "version_id": "24.04"}
    assert host["container"] is False
    assert host["memory"] == {"total_bytes": 127535936 * 1024, "available_bytes": 121477376 * 1024}
    assert host["uptime_s"] == 86523.41
    assert host["docker"] == {"version": "28.3.3"}
    assert host["clock"] == {"synchronized": True}
    assert probe["kernel"]["page_size"] == 65536
    assert "kho=off" in probe["kernel"]["cmdline"]
    assert probe["gpu"]["driver"] == "580.142"
    assert probe["gpu"]["names"] == ["NVIDIA GB10"]
    assert probe["gpu"]["uvm"] == {
        "srcversion": "3B1A0F6C9D2E4857A6B0C1D",
        "signer": "sparkmesh module signing key",
        "parameters": {"uvm_disable_hmm": "N", "uvm_pack_sysmem_leaf_tables": "Y"},
    }
    assert probe["storage"]["mounts"]["/var/lib/sparkmesh"]["free_bytes"] == 3012488519680
    assert probe["emulated"] == []
    assert probe["unobserved"] == []


def test_healthy_node_shows_its_release() -> None:
    probe = replay("gb10_triangle_spark1")
    assert [(image["name"], image["source_id"]) for image in probe["image"]["images"]] == [
        ("sparkmesh:r-0123456789ab", "s-00112233")
    ]
    assert probe["image"]["images"][0]["identity"].startswith("sha256:")
    (store,) = probe["model"]["stores"]
    assert (store["name"], store["files"], store["bytes"]) == ("deepseek-v41-flash", 2, 5368711107)
    runtime = probe["runtime"]
    assert sorted(runtime["units"]) == ["sparkmesh-guard.service", "sparkmesh-rank.service"]
    assert runtime["units"]["sparkmesh-rank.service"] == {
        "active": "active",
        "sub": "running",
        "since": "Tue 2026-11-24 09:14:31 UTC",
    }
    assert runtime["release"] == "r-0123456789ab"


def test_half_loaded_image_has_no_identity_and_stops_nothing() -> None:
    class Broken(Reader):
        def command(self, name: str, *args: Any, **options: Any) -> str | None:
            text = super().command(name, *args, **options)
            return text.replace("RootFS", "NoRootFS") if text and name == "docker-inspect" else text

    probe = read_node(["image"], Broken(FIXTURES / "gb10_triangle_spark1"))
    assert probe["image"]["images"][0]["identity"] is None
    assert probe["unobserved"] == ["image.identity"]


def test_interfaces_of_engines_are_left_out_and_the_better_default_route_wins() -> None:
    fabric = replay("gb10_triangle_spark1")["fabric"]
    assert set(fabric["interfaces"]) == {*SPARK_INTERFACES, "enP7s7"}
    assert fabric["default_interface"] == "enP7s7"
    assert fabric["interfaces"]["enP2p1s0f1np1"] == {
        "present": True, "carrier": True, "speed": 200000, "mtu": 9000, "operstate": "up", "mac": "4c:bb:47:00:0a:04",
        "addresses": ["10.20.17.11/24"], "phys_port_name": "p1", "driver": None, "pci": None,
    }  # fmt: skip


def test_gid_slots_are_numeric_and_the_index_is_no_constant() -> None:
    hcas = replay("gb10_triangle_spark1")["fabric"]["hcas"]
    used = {
        hca: [slot["index"] for slot in data["gids"] if slot["type"] == "RoCE v2" and ipv4_of_gid(slot["gid"])]
        for hca, data in hcas.items()
    }
    assert used == {"rocep1s0f0": [3], "rocep1s0f1": [3], "roceP2p1s0f0": [3], "roceP2p1s0f1": [10]}
    assert [slot["index"] for slot in hcas["roceP2p1s0f1"]["gids"]] == [0, 1, 9, 10]
    assert hcas["roceP2p1s0f1"]["gids"][3]["netdev"] == "enP2p1s0f1np1"


def test_zero_row_with_a_type_is_an_empty_slot() -> None:
    hcas = replay("gb10_half_cabled")["fabric"]["hcas"]
    assert [slot["index"] for slot in hcas["rocep1s0f0"]["gids"]] == [0, 1, 2, 3]
    assert hcas["roceP2p1s0f1"] == {"port_state": "DOWN", "gids": []}


def test_half_cabled_node() -> None:
    probe = replay("gb10_half_cabled")
    ports = probe["fabric"]["interfaces"]
    assert (ports["enp1s0f0np0"]["mtu"], ports["enp1s0f0np0"]["addresses"]) == (1500, ["192.168.100.10/24"])
    assert (ports["enp1s0f1np1"]["carrier"], ports["enp1s0f1np1"]["speed"]) == (False, None)
    # The kernel gives no carrier at all for a port that is administratively down.
    assert ports["enP2p1s0f1np1"]["carrier"] is False
    assert probe["gpu"]["driver"] is None
    assert {"gpu.driver", "host.docker"} <= set(probe["unobserved"])
    assert "fabric.interfaces.enP2p1s0f1np1.carrier" not in probe["unobserved"]


def test_absent_nic_is_observed_and_the_lab_marks_what_it_emulates() -> None:
    probe = replay("gb10_nic_absent")
    assert probe["fabric"]["hcas"] == {}
    assert "fabric.hcas" not in probe["unobserved"]
    assert [probe["fabric"]["interfaces"][name]["present"] for name in SPARK_INTERFACES] == [False] * 4
    assert probe["emulated"] == ["gpu", "rdma"]


def test_nothing_is_guessed_in_an_empty_tree(tmp_path: Path) -> None:
    probe = read_node(SECTIONS, Reader(tmp_path))
    assert {
        "host.hostname", "host.architecture", "host.memory", "host.docker", "host.clock", "kernel.page_size",
        "kernel.release", "fabric.hcas", "fabric.interfaces", "fabric.addresses", "gpu.driver", "image.images",
        "runtime.units", "storage.mounts./",
    } <= set(probe["unobserved"])  # fmt: skip
    assert probe["storage"]["mounts"] == {}
    assert probe["host"]["clock"]["synchronized"] is None


def test_lost_addresses_are_not_no_addresses() -> None:
    class Deaf(Reader):
        def command(self, name: str, *args: Any, **options: Any) -> str | None:
            return "{" if name == "ip-addr" else super().command(name, *args, **options)

    probe = read_node(["fabric"], Deaf(FIXTURES / "gb10_triangle_spark1"))
    assert probe["fabric"]["interfaces"]["enp1s0f0np0"]["addresses"] is None
    assert "fabric.interfaces.enp1s0f0np0.addresses" in probe["unobserved"]


def test_einval_of_an_empty_slot_is_no_lost_value(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_read = Path.read_bytes

    def sysfs_read(path: Path) -> bytes:
        if path.match("gid_attrs/types/3") and "roceP2p1s0f1" in path.parts:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if path.match("gid_attrs/types/3") and "rocep1s0f0" in path.parts:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return plain_read(path)

    monkeypatch.setattr(Path, "read_bytes", sysfs_read)
    probe = read_node(["fabric"], Reader(FIXTURES / "gb10_half_cabled"))
    assert probe["fabric"]["hcas"]["roceP2p1s0f1"]["gids"] == []
    assert [key for key in probe["unobserved"] if ".gids." in key] == ["fabric.hcas.rocep1s0f0.gids.3"]


def test_replay_runs_no_command_and_a_live_node_few() -> None:
    def forbidden(*_: object, **__: object) -> Result:
        raise AssertionError("a recorded node must not run commands")

    read_node(SECTIONS, Reader(FIXTURES / "gb10_triangle_spark1", forbidden))
    spawned: list[str] = []

    def counting(argv: list[str], **_: object) -> Result:
        spawned.append(argv[0])
        return Result(tuple(argv), 0, "", "")

    read_node(SECTIONS, Reader("/", counting))
    assert len(spawned) <= 7, spawned
