"""Findings: what is seen decides, what is not seen is never ok."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_plan import fabric_plan
from ansible_collections.sparkmesh.cluster.plugins.module_utils.judge import (
    STATUSES,
    JudgeError,
    exit_code,
    judge,
    judge_equal,
)
from ansible_collections.sparkmesh.cluster.plugins.module_utils.judge_checks import EXPECT

PLAN = fabric_plan({"spark-1": 0, "spark-2": 1, "spark-3": 2}, "triangle")
LINKS = PLAN["nodes"]["spark-1"]["links"]
EXPECTED: dict[str, Any] = {
    "host": {
        "architecture": "aarch64",
        "os_id": "ubuntu",
        "os_version": "24.04",
        "python_minimum": "3.11",
        "docker_minimum": "27.0",
        "clock_synchronized": True,
    },
    "kernel": {"release": "6.17.0-1014-nvidia-64k", "page_size": 65536, "cmdline": ["kho=off"]},
    "fabric": {"links": LINKS, "mtu": 9000, "speed": 200000, "rdma": True},
    "gpu": {"driver": "580.95.05", "names": ["NVIDIA GB10"], "uvm": {"parameters": {"uvm_pt_pack": "1"}}},
    "memory": {"available_bytes": 100 << 30, "total_bytes": 119 << 30},
    "storage": {"/var/lib/docker": 30 << 30, "/var/lib/sparkmesh": 200 << 30},
    "image": {"identity": "sha256:1", "source_id": "sha256:2"},
    "model": {"manifest": "sha256:3"},
    "runtime": {"active": True, "release": "r-1", "group_hash": "sha256:4"},
}


def gid(address: str) -> str:
    high, low = (int(a) * 256 + int(b) for a, b in (address.split(".")[:2], address.split(".")[2:]))
    return f"0000:0000:0000:0000:0000:ffff:{high:04x}:{low:04x}"


def healthy() -> dict[str, Any]:
    """A probe of spark-1 in which everything is as expected."""
    return {
        "host": {
            "hostname": "spark-1",
            "architecture": "aarch64",
            "os": {"id": "ubuntu", "version_id": "24.04"},
            "container": False,
            "python": "3.12.3",
            "memory": {"total_bytes": 119 << 30, "available_bytes": 110 << 30},
            "docker": {"version": "28.3.1"},
            "clock": {"synchronized": True},
        },
        "kernel": {"release": "6.17.0-1014-nvidia-64k", "page_size": 65536, "cmdline": "quiet kho=off"},
        "fabric": {
            "interfaces": {
                link["interface"]: {
                    "present": True,
                    "carrier": True,
                    "speed": 200000,
                    "mtu": 9000,
                    "addresses": [f"{link['address']}/24"],
                    "phys_port_name": link["cage"],
                }
                for link in LINKS
            },
            "hcas": {
                link["hca"]: {
                    "port_state": "ACTIVE",
                    "gids": [
                        {"index": 2, "type": "IB/RoCE v1", "gid": gid(link["address"])},
                        {"index": 3, "type": "RoCE v2", "gid": gid(link["address"])},
                    ],
                }
                for link in LINKS
            },
        },
        "gpu": {"driver": "580.95.05", "names": ["NVIDIA GB10"], "uvm": {"parameters": {"uvm_pt_pack": "1", "x": "0"}}},
        "storage": {"mounts": {path: {"free_bytes": 1 << 40} for path in ("/var/lib/docker", "/var/lib/sparkmesh")}},
        "image": {"images": [{"name": "sparkmesh:1", "identity": "sha256:1", "source_id": "sha256:2"}]},
        "model": {"stores": [{"name": "tiny", "manifest": "sha256:3"}]},
        "runtime": {
            "units": {f"sparkmesh-{unit}.service": {"active": "active"} for unit in ("rank", "guard")},
            "release": "r-1",
            "group_hash": "sha256:4",
        },
        "emulated": [],
        "unobserved": [],
    }


def at(probe: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The probe with the value at ``path`` replaced."""
    *parents, last = path.split("|")
    holder = probe
    for parent in parents:
        holder = holder[parent]
    holder[last] = value
    return probe


def by_status(findings: Any) -> dict[str, list[str]]:
    return {status: [finding["id"] for finding in findings if finding["status"] == status] for status in STATUSES}


def test_a_healthy_node_is_ok_in_everything() -> None:
    findings = judge(healthy(), EXPECTED, "spark-1")
    assert {finding["status"] for finding in findings} == {"ok"}
    assert {finding["node"] for finding in findings} == {"spark-1"}
    assert exit_code(findings) == 0
    for finding in findings:
        assert set(finding) == {"id", "node", "status", "title", "seen", "wanted", "fix", "emulated"}
        assert finding["fix"] == ""
        assert finding["seen"] is not None
        assert finding["emulated"] is False


IF0, HCA0 = LINKS[0]["interface"], LINKS[0]["hca"]
FAULTS: list[tuple[str, Any, str, str, int]] = [
    ("host|architecture", "x86_64", "host.architecture", "fail", 1),
    ("host|os|id", "debian", "host.os", "fail", 1),
    ("host|os|version_id", "22.04", "host.os_version", "warn", 1),
    ("host|python", "3.9.18", "host.python", "fail", 1),
    ("host|docker", None, "host.docker", "fail", 1),
    ("host|docker|version", "9.1", "host.docker", "fail", 1),
    ("host|clock|synchronized", False, "host.clock", "warn", 1),
    ("host|memory|available_bytes", 1, "memory.available", "fail", 1),
    ("host|memory|total_bytes", 1, "memory.total", "fail", 1),
    ("kernel|release", "6.11.0", "kernel.release", "fail", 1),
    ("kernel|page_size", 4096, "kernel.page_size", "fail", 1),
    ("kernel|cmdline", "nokho=off", "kernel.cmdline", "fail", 1),
    ("gpu|driver", None, "gpu.driver", "fail", 1),
    ("gpu|names", [], "gpu.names", "fail", 1),
    ("gpu|uvm", None, "gpu.uvm", "fail", 1),
    ("gpu|uvm|parameters|uvm_pt_pack", "0", "gpu.uvm", "fail", 1),
    (f"fabric|interfaces|{IF0}|present", False, "fabric.present", "fail", 1),
    (f"fabric|interfaces|{IF0}|carrier", False, "fabric.carrier", "fail", 1),
    (f"fabric|interfaces|{IF0}|speed", None, "fabric.speed", "fail", 1),
    (f"fabric|interfaces|{IF0}|mtu", 1500, "fabric.mtu", "fail", 1),
    (f"fabric|interfaces|{IF0}|addresses", [], "fabric.address", "fail", 1),
    (f"fabric|interfaces|{IF0}|addresses", ["10.20.8.11/24", "192.168.1.1/24"], "fabric.address", "fail", 1),
    (f"fabric|interfaces|{IF0}|phys_port_name", "p1", "fabric.cage", "fail", 1),
    (f"fabric|hcas|{HCA0}|port_state", "DOWN", "fabric.rdma", "fail", 1),
    (
        f"fabric|hcas|{HCA0}|gids",
        [{"index": 2, "type": "IB/RoCE v1", "gid": gid("10.20.8.11")}],
        "fabric.gid",
        "fail",
        1,
    ),
    (f"fabric|hcas|{HCA0}|gids", [{"index": 3, "type": "RoCE v2", "gid": gid("10.20.9.11")}], "fabric.gid", "fail", 1),
    ("storage|mounts|/var/lib/docker|free_bytes", 5, "storage.free", "fail", 1),
    ("image|images", [], "image.identity", "fail", 2),
    ("model|stores", [{"name": "tiny", "manifest": "sha256:9"}], "model.manifest", "fail", 1),
    ("runtime|units|sparkmesh-rank.service|active", "activating", "runtime.unit", "fail", 1),
    ("runtime|units|sparkmesh-guard.service|active", "failed", "runtime.guard", "fail", 1),
    ("runtime|units", {}, "runtime.unit", "fail", 2),
    ("runtime|release", "r-2", "runtime.release", "fail", 1),
    ("runtime|group_hash", None, "runtime.group_hash", "fail", 1),
]


@pytest.mark.parametrize(("path", "value", "check_id", "status", "count"), FAULTS)
def test_one_fault_is_one_finding_with_a_fix(path: str, value: Any, check_id: str, status: str, count: int) -> None:
    findings = judge(at(healthy(), path, value), EXPECTED, "spark-1")
    open_ones = [finding for finding in findings if finding["status"] != "ok"]
    assert [finding["status"] for finding in open_ones] == [status] * count
    assert open_ones[0]["id"] == check_id
    assert all(finding["fix"] and finding["wanted"] is not None for finding in open_ones)
    assert exit_code(findings) == (1 if status == "fail" else 2)


@pytest.mark.parametrize("section", ["host", "kernel", "fabric", "gpu", "storage", "image", "model", "runtime"])
@pytest.mark.parametrize("how", ["listed", "not asked", "empty"])
def test_a_section_that_was_not_seen_is_never_ok(section: str, how: str) -> None:
    probe = healthy()
    if how == "listed":
        probe["unobserved"] = [section]
    elif how == "not asked":
        del probe[section]
    else:
        probe[section] = {}
    parts = ["host", "memory"] if section == "host" else [section]
    findings = judge(probe, {part: EXPECTED[part] for part in parts}, "spark-1")
    assert findings
    assert {finding["status"] for finding in findings} == {"unobserved"}
    assert all(section in finding["fix"] for finding in findings)
    assert exit_code(findings) == 2


@pytest.mark.parametrize(
    ("key", "ids"),
    [
        ("host.memory", ["memory.available", "memory.total"]),
        ("host.docker", ["host.docker"]),
        ("fabric.addresses", ["fabric.address"] * 4),
        (f"fabric.interfaces.{IF0}.mtu", ["fabric.mtu"]),
        (
            f"fabric.interfaces.{IF0}",
            [f"fabric.{name}" for name in ("present", "carrier", "cage", "address", "mtu", "speed")],
        ),
        ("fabric.hcas", ["fabric.rdma", "fabric.gid"] * 4),
        ("gpu.uvm.parameters", ["gpu.uvm"]),
        ("image.identity", ["image.identity"]),
        ("runtime.release", ["runtime.release", "runtime.group_hash"]),
        ("storage.mounts./var/lib/docker", ["storage.free"]),
    ],
)
def test_unobserved_keys_hit_exactly_what_needs_them(key: str, ids: list[str]) -> None:
    probe = healthy()
    probe["unobserved"] = [key]
    found = by_status(judge(probe, EXPECTED, "spark-1"))
    assert found["unobserved"] == ids
    assert found["fail"] == []


def test_not_found_proves_nothing_while_a_part_could_not_be_read() -> None:
    probe = at(healthy(), "model|stores", [])
    probe["unobserved"] = ["model.stores.tiny/main"]
    found = judge(probe, {"model": EXPECTED["model"]}, "spark-1")
    assert [finding["status"] for finding in found] == ["unobserved"]
    assert "model.stores.tiny/main" in found[0]["fix"]
    # What was found all the same is proved.
    probe = healthy()
    probe["unobserved"] = ["model.stores.other/main"]
    assert by_status(judge(probe, {"model": EXPECTED["model"]}, "spark-1"))["ok"] == ["model.manifest"]


def test_a_container_does_not_own_its_machine() -> None:
    probe = at(healthy(), "host|container", "docker")
    probe["kernel"]["page_size"] = 4096
    found = judge(probe, EXPECTED, "spark-1")
    aside = {finding["id"] for finding in found if finding["status"] == "not_applicable"}
    machine = {"kernel.release", "kernel.page_size", "kernel.cmdline", "gpu.driver", "gpu.names", "gpu.uvm"}
    assert aside == machine | {"fabric.cage", "fabric.speed", "fabric.rdma", "fabric.gid"}
    assert all("docker" in finding["fix"] for finding in found if finding["status"] == "not_applicable")
    assert exit_code(found) == 0


def test_what_the_lab_makes_up_is_judged_and_marked() -> None:
    probe = at(healthy(), "host|container", "docker")
    probe["emulated"] = ["rdma: a made-up tree", "kernel: shared", "gpu", "host.memory"]
    found = judge(probe, EXPECTED, "spark-1")
    marked = {finding["id"]: finding["status"] for finding in found if finding["emulated"]}
    assert marked["fabric.rdma"] == marked["fabric.gid"] == "ok"
    assert marked["kernel.page_size"] == marked["gpu.driver"] == "not_applicable"
    assert marked["memory.available"] == "ok"
    assert not {"fabric.mtu", "image.identity", "host.architecture"} & set(marked)
    probe["fabric"]["hcas"][HCA0]["port_state"] = "DOWN"
    assert by_status(judge(probe, EXPECTED, "spark-1"))["fail"] == ["fabric.rdma"]


def test_a_stopped_service() -> None:
    expect = {"runtime": {"active": False}}
    assert by_status(judge(healthy(), expect, "n"))["fail"] == ["runtime.unit", "runtime.guard"]
    probe = at(healthy(), "runtime|units", {"sparkmesh-rank.service": {"active": "inactive"}})
    assert by_status(judge(probe, expect, "n"))["ok"] == ["runtime.unit", "runtime.guard"]


@pytest.mark.parametrize(
    ("expect", "word"),
    [
        ({"kernal": {}}, "did you mean kernel?"),
        ({"kernel": {"pagesize": 4096}}, "did you mean page_size?"),
        ({"kernel": {"page_size": "65536"}}, "'65536'"),
        ({"host": {"clock_synchronized": 1}}, "clock_synchronized"),
        ({"storage": {"/": True}}, "expect.storage./"),
        ({"kernel": []}, "expect.kernel"),
        ({"host": {"docker_minimum": "latest"}}, "'latest'"),
        ([], "expect is []"),
        ({"fabric": {"mtu": 9000}}, "needs expect.fabric.links"),
        ({"fabric": {"links": [], "rdma": True}}, "needs expect.fabric.links"),
        ({"fabric": {"links": [{"interface": "x"}]}}, "links[0]"),
    ],
)
def test_an_expectation_that_would_check_nothing_is_refused(expect: Any, word: str) -> None:
    with pytest.raises(JudgeError) as refused:
        judge(healthy(), expect, "n")
    assert word in str(refused.value)


def test_a_probe_that_is_none_is_refused() -> None:
    with pytest.raises(JudgeError, match="probe is None"):
        judge(None, EXPECTED, "n")  # type: ignore[arg-type]
    with pytest.raises(JudgeError, match="probe of b is None"):
        judge_equal({"a": healthy(), "b": None})  # type: ignore[dict-item]


def test_every_expectable_key_makes_a_finding() -> None:
    for section, keys in EXPECT.items():
        for key in keys or EXPECTED[section]:
            if (section, key) not in {("fabric", "mtu"), ("fabric", "speed"), ("fabric", "rdma")}:
                assert judge(healthy(), {section: {key: EXPECTED[section][key]}}, "n"), (section, key)
    assert {section: set(keys) for section, keys in EXPECT.items() if keys} == {
        section: set(EXPECTED[section]) for section, keys in EXPECT.items() if keys
    }


def test_nothing_expected_is_nothing_found() -> None:
    assert judge(healthy(), {}, "n") == []
    assert judge(healthy(), {"kernel": {"release": None}}, "n") == []
    assert exit_code([]) == 2


def test_exit_code() -> None:
    def code(*statuses: str) -> int:
        return exit_code([{"status": status} for status in statuses])

    assert code("ok", "not_applicable") == 0
    assert code("not_applicable") == 2
    assert code("ok", "unobserved") == 2
    assert code("ok", "warn") == 2
    assert code("ok", "unobserved", "fail") == 1


def test_equal_nodes() -> None:
    findings = judge_equal({"a": healthy(), "b": healthy()})
    assert {finding["status"] for finding in findings} == {"ok"}
    assert {finding["node"] for finding in findings} == {"all"}
    assert len(findings) == 5


@pytest.mark.parametrize(
    ("path", "value", "check_id", "status"),
    [
        ("kernel|release", "6.11", "equal.kernel", "fail"),
        ("kernel|page_size", 4096, "equal.page_size", "fail"),
        ("host|architecture", "x86_64", "equal.architecture", "fail"),
        ("host|docker|version", "20", "equal.docker", "warn"),
        ("host|python", "3.11.2", "equal.python", "warn"),
        ("host|python", None, "equal.python", "unobserved"),
        ("kernel", {}, "equal.kernel", "unobserved"),
    ],
)
def test_unequal_nodes(path: str, value: Any, check_id: str, status: str) -> None:
    other = at(healthy(), path, value)
    found = {one["id"]: one for one in judge_equal({"a": healthy(), "b": other, "c": healthy()})}
    assert found[check_id]["status"] == status
    if status != "unobserved":
        assert set(found[check_id]["seen"]) == {"a", "b", "c"}
    else:
        assert "b" in found[check_id]["fix"].split(":")[0]


def test_containers_share_a_kernel_but_not_when_they_differ() -> None:
    lab = at(healthy(), "host|container", "docker")
    found = {one["id"]: one["status"] for one in judge_equal({"a": lab, "b": copy.deepcopy(lab)})}
    assert found["equal.kernel"] == found["equal.page_size"] == "not_applicable"
    assert found["equal.python"] == "ok"
    other = at(copy.deepcopy(lab), "kernel|release", "5.0")
    assert {one["id"]: one["status"] for one in judge_equal({"a": lab, "b": other})}["equal.kernel"] == "fail"


def test_one_node_is_equal_to_nothing() -> None:
    assert {one["status"] for one in judge_equal({"a": healthy()})} == {"not_applicable"}
