"""The rank spec: what all ranks share, what one has for itself, and what is refused."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_plan import fabric_plan
from ansible_collections.sparkmesh.cluster.plugins.module_utils.rank_spec import (
    SpecError,
    group_hash,
    rank_spec,
    release_id,
)

SCHEMA = Path(__file__).parents[3] / "runtime/src/sparkmesh_runtime/rank_spec.schema.json"
RANKS = {"spark-1": 0, "spark-2": 1, "spark-3": 2}
ORDER = list(RANKS)


def inputs() -> dict[str, Any]:
    return {
        "ranks": dict(RANKS),
        "addresses": {node: f"172.31.77.{11 + rank}" for node, rank in RANKS.items()},
        "plan": fabric_plan(RANKS, "triangle"),
        "profile": {
            "name": "tp3",
            "fabric_transport": "nccl",
            "master_port": 29501,
            "api": {"host": "0.0.0.0", "port": 8000},
            "options": {"dtype": "bfloat16", "max_model_len": 512, "enforce_eager": True},
            "environment": {"MAX_JOBS": "2"},
            "guard": {
                "start_floor_bytes": 5 << 30,
                "start_period_s": 0.25,
                "steady_floor_bytes": 3 << 30,
                "steady_period_s": 2,
            },
            "timeouts": {"start_s": 900, "stop_s": 60},
        },
        "image": {"identity": f"sha256:{'a' * 64}", "reference": f"127.0.0.1:5000/sparkmesh@sha256:{'b' * 64}"},
        "model": {"path": "/models/tiny", "name": "tiny", "manifest": f"sha256:{'c' * 64}"},
        "cluster": "lab",
        "management_interface": "enP7s7",
    }


def spec(node: str = "spark-1", **changes: Any) -> dict[str, Any]:
    return rank_spec(node, **{**inputs(), **changes})


def changed(path: str, value: Any) -> dict[str, Any]:
    """The inputs with one value replaced; ``None`` removes the key."""
    result = copy.deepcopy(inputs())
    *parents, last = path.split("/")
    holder = result
    for parent in parents:
        holder = holder[parent]
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    return result


def test_every_rank_fits_the_published_schema() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for node in RANKS:
        jsonschema.validate(spec(node), schema)


def test_a_rank_has_its_own_place() -> None:
    second = spec("spark-2")
    assert (second["rank"], second["size"], second["node"], second["address"]) == (1, 3, "spark-2", "172.31.77.12")
    assert second["head"] == {"address": "172.31.77.11", "master_port": 29501}
    assert second["node_environment"] == {
        "VLLM_HOST_IP": "172.31.77.12",
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "NCCL_SOCKET_IFNAME": "enP7s7",
        "NCCL_IB_HCA": "=rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1",
    }
    assert {link["peer"] for link in second["fabric"]["links"]} == {"spark-1", "spark-3"}
    assert set(second["fabric"]["links"][0]) == {"interface", "hca", "address", "peer", "peer_address"}


def test_ranks_agree_on_hash_and_release_even_with_other_interface_names() -> None:
    specs = [
        spec(node, management_interface=name) for node, name in zip(RANKS, ("enP7s7", "eth0", "eno1"), strict=True)
    ]
    assert len({one["group_hash"] for one in specs}) == 1
    assert len({one["release"] for one in specs}) == 1
    assert len({json.dumps(one["environment"], sort_keys=True) for one in specs}) == 1


def test_hash_and_release_are_those_of_the_contract() -> None:
    one = spec("spark-3")
    own = ("rank", "node", "address", "node_environment", "release", "group_hash")
    group = {key: value for key, value in one.items() if key not in own}
    group["fabric"] = {"mtu": 9000}
    group["nodes"] = ORDER
    text = json.dumps(group, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert one["group_hash"] == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    named = one["image"]["identity"] + one["model"]["manifest"] + text
    assert one["release"] == "r-" + hashlib.sha256(named.encode()).hexdigest()[:12]
    assert group_hash(one, ORDER) == one["group_hash"]
    assert release_id(one, ORDER) == one["release"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cluster", "other"),
        ("profile/options/max_model_len", 1024),
        ("profile/environment/MAX_JOBS", "4"),
        ("profile/master_port", 29502),
        ("profile/api/port", 8001),
        ("profile/guard/steady_floor_bytes", 1 << 30),
        ("profile/timeouts/stop_s", 61),
        ("profile/fabric_transport", "gloo"),
        ("image/identity", f"sha256:{'d' * 64}"),
        ("model/manifest", f"sha256:{'e' * 64}"),
    ],
)
def test_what_is_shared_changes_the_hash(path: str, value: Any) -> None:
    other = rank_spec("spark-1", **changed(path, value))
    assert other["group_hash"] != spec()["group_hash"]
    assert other["release"] != spec()["release"]


def test_nodes_and_their_order_are_part_of_the_hash() -> None:
    assert group_hash(spec(), ORDER) != group_hash(spec(), ORDER[::-1])


def test_nccl_variables_only_where_nccl_is_used_and_the_profile_wins() -> None:
    gloo = rank_spec("spark-1", **changed("profile/fabric_transport", "gloo"))
    assert not [name for name in gloo["environment"] if name.startswith("NCCL_")]
    assert "NCCL_IB_HCA" not in gloo["node_environment"]
    assert spec()["environment"]["NCCL_IB_SUBNET_AWARE_ROUTING"] == "1"
    debug = rank_spec("spark-1", **changed("profile/environment/NCCL_DEBUG", "INFO"))
    assert debug["environment"]["NCCL_DEBUG"] == "INFO"


REFUSED: list[tuple[str, Any, str]] = [
    ("ranks/spark-3", 1, "ranks are"),
    ("ranks/spark-3", "2", "ranks are"),
    ("ranks/spark-3", None, "fabric plan has the ranks"),
    ("addresses/spark-2", None, "spark-2: control address"),
    ("addresses/spark-2", 3232235777, "spark-2: control address"),
    ("addresses/spark-2", "spark-2.local", "spark-2.local"),
    ("addresses/spark-2", "172.31.77.11", "spark-2 and spark-1 share"),
    ("addresses/spark-2", "10.20.8.12", "on the fabric"),
    ("plan", {}, "fabric plan has the ranks"),
    ("plan", [], "plan is []"),
    ("cluster", "two words", "two words"),
    ("management_interface", "eth0,eth1", "eth0,eth1"),
    ("management_interface", "^docker", "^docker"),
    ("management_interface", "enp1s0f0np0", "carries a cable"),
    ("image/identity", "sha256:short", "image.identity"),
    ("image/reference", "127.0.0.1:5000/sparkmesh:latest", "latest"),
    ("model/path", "models/tiny", "model.path"),
    ("model/manifest", None, "model.manifest is None"),
    ("profile/tensor_parallel_size", 4, "tensor_parallel_size 4"),
    ("profile/fabric_transport", "ib", "'ib'"),
    ("profile/fabric_transport", None, "profile.fabric_transport is missing"),
    ("profile/master_port", 32768, "32768"),
    ("profile/master_port", 80, "80"),
    ("profile/master_port", "29501", "'29501'"),
    ("profile/master_port", 8000, "both 8000"),
    ("profile/api/port", 70000, "70000"),
    ("profile/api/host", "localhost", "localhost"),
    ("profile/api/hots", "0.0.0.0", "did you mean host"),
    ("profile/gaurd", {}, "did you mean guard"),
    ("profile/guard/start_period_s", 0, "profile.guard.start_period_s"),
    ("profile/guard/start_period_s", True, "profile.guard.start_period_s"),
    ("profile/guard/steady_period_s", 11, "profile.guard.steady_period_s"),
    ("profile/guard/start_floor_bytes", "5GiB", "5GiB"),
    ("profile/guard", None, "profile.guard is missing"),
    ("profile/timeouts/start_s", 1.5, "profile.timeouts.start_s"),
    ("profile/options", [], "profile.options"),
    ("profile/options/max-model-len", 5, "max-model-len"),
    ("profile/options/api_key", "x", "secrets"),
    ("profile/options/tensor_parallel_size", 3, "the number of ranks, 3 here"),
    ("profile/options/pipeline_parallel_size", 2, "pipeline_parallel_size"),
    ("profile/options/stop", [], "profile.options.stop"),
    ("profile/options/stop", [True], "profile.options.stop"),
    ("profile/environment/HF_TOKEN", "x", "names a secret"),
    ("profile/environment/VLLM_HOST_IP", "1.2.3.4", "differs from node to node"),
    ("profile/environment/MAX_JOBS", 2, 'write MAX_JOBS: "2"'),
    ("profile/environment/BAD-NAME", "2", "BAD-NAME"),
    ("profile/environment/NCCL_IB_GID_INDEX", "auto", "'auto'"),
]


@pytest.mark.parametrize(("path", "value", "word"), REFUSED)
def test_refused_by_name(path: str, value: Any, word: str) -> None:
    with pytest.raises(SpecError) as refused:
        rank_spec("spark-1", **changed(path, value))
    assert word in str(refused.value)
    assert all("wanted" in problem or ": " in problem for problem in refused.value.problems)


def test_node_without_a_rank() -> None:
    with pytest.raises(SpecError, match="spark-9"):
        spec("spark-9")


def test_a_ring_refuses_what_needs_a_diagonal() -> None:
    ranks = {**RANKS, "spark-4": 3}

    def ring(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        values = inputs() | {"ranks": ranks, "plan": fabric_plan(ranks, "ring")}
        values["addresses"] = {node: f"172.31.77.{11 + rank}" for node, rank in ranks.items()}
        change(values["profile"])
        return rank_spec("spark-1", **values)

    assert ring(lambda profile: None)["environment"]["NCCL_ALGO"] == "Ring"
    with pytest.raises(SpecError, match="enable_expert_parallel"):
        ring(lambda profile: profile["options"].update(enable_expert_parallel=True))
    with pytest.raises(SpecError, match="NCCL_TOPO_FILE"):
        ring(lambda profile: profile["environment"].update(NCCL_TOPO_FILE="/x"))


def test_all_problems_come_at_once() -> None:
    values = changed("image/identity", "x") | {"cluster": "", "management_interface": ""}
    with pytest.raises(SpecError) as refused:
        rank_spec("spark-1", **values)
    assert len(refused.value.problems) == 3
