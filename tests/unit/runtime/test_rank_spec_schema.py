"""The schema accepts three whole ranks and names every fault of a broken one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from sparkmesh_runtime import spec as rank_spec


def test_the_schema_itself_is_valid_and_describes_every_field() -> None:
    schema = rank_spec.schema()
    Draft202012Validator.check_schema(schema)
    assert set(schema["required"]) == set(schema["properties"]) - {"node_environment"}
    assert all(field.get("description") for field in schema["properties"].values())


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_whole_spec_is_accepted(spec_of: Any, rank: int, tmp_path: Path) -> None:
    path = tmp_path / "rank.json"
    path.write_text(json.dumps(spec_of(rank)))
    assert rank_spec.load(path) == spec_of(rank)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("head.master_port", 70000, "head.master_port"),
        ("image.identity", "sparkmesh:latest", "image.identity"),
        ("address", "172.31.77.256", "address"),
        ("address", "172.31.77.1.", "address"),
        ("release", "r-1", "release"),
        ("surprise", 1, "surprise"),
        ("fabric.links.0.speed", 200, "speed"),
        ("vllm.options.api_key", "x", "api_key"),
        ("vllm.options.tensor_parallel_size", 4, "tensor_parallel_size"),
        ("vllm.options.max-model-len", 4, "max-model-len"),
        ("vllm.options.lists", [], "vllm.options.lists"),
        ("environment.VLLM_API_KEY", "x", "VLLM_API_KEY"),
        ("node_environment.HF_TOKEN", "x", "HF_TOKEN"),
        ("environment.OMP_NUM_THREADS", 8, "environment.OMP_NUM_THREADS"),
        ("guard.start_period_s", 0, "guard.start_period_s"),
        ("address", "172.31.77.12", "head.address"),
        ("api.port", 29501, "master_port"),
    ],
)
def test_a_fault_is_named_with_seen_and_wanted(spec_of: Any, path: str, value: object, named: str) -> None:
    spec = spec_of(0)
    *parents, last = path.split(".")
    place: Any = spec
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    place[last] = value
    found = rank_spec.problems(spec)
    assert len(found) == 1, [str(problem) for problem in found]
    assert named in str(found[0]) and "seen" in str(found[0]) and "wanted" in str(found[0])


def test_every_fault_is_listed_at_once(spec_of: Any, tmp_path: Path) -> None:
    spec = spec_of(1)
    del spec["model"]["manifest"]
    spec["size"], spec["timeouts"]["stop_s"] = "3", -1
    path = tmp_path / "rank.json"
    path.write_text(json.dumps(spec))
    with pytest.raises(rank_spec.SpecError) as caught:
        rank_spec.load(path)
    assert [problem.path for problem in caught.value.problems] == ["model", "size", "timeouts.stop_s"]
    assert "manifest" in str(caught.value) and "fix:" in str(caught.value)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_file_that_is_no_spec(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "rank.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(rank_spec.SpecError, match=r"rank\.json: 1 problem"):
        rank_spec.load(path)


def test_a_rank_beyond_the_size(spec_of: Any) -> None:
    assert [str(problem) for problem in rank_spec.problems(spec_of(2) | {"size": 2})] == [
        "rank: seen 2, wanted less than size, 2"
    ]
