"""The command line of each rank, word for word, and the launcher around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sparkmesh_runtime.argv import option, vllm_argv, vllm_environment

SOURCE = Path(__file__).parents[3] / "runtime" / "src"
OPTIONS = [
    "--cudagraph-capture-sizes",
    "1",
    "2",
    "4",
    "--dtype",
    "bfloat16",
    "--no-enable-prefix-caching",
    "--enforce-eager",
    "--max-model-len",
    "512",
    "--speculative-config",
    '{"method":"dspark","num_speculative_tokens":5}',
]


def common(rank: int) -> list[str]:
    return [
        "vllm",
        "serve",
        "/models/tiny/main",
        "--served-model-name",
        "tiny-dsv3",
        "--tensor-parallel-size",
        "3",
        "--distributed-executor-backend",
        "mp",
        "--nnodes",
        "3",
        "--node-rank",
        str(rank),
        "--master-addr",
        "172.31.77.11",
        "--master-port",
        "29501",
    ]


def test_the_head_serves(spec_of: Any) -> None:
    assert vllm_argv(spec_of(0)) == [*common(0), "--host", "0.0.0.0", "--port", "8000", *OPTIONS]


@pytest.mark.parametrize("rank", [1, 2])
def test_the_others_are_headless(spec_of: Any, rank: int) -> None:
    assert vllm_argv(spec_of(rank)) == [*common(rank), "--headless", *OPTIONS]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--a-b"]),
        (False, ["--no-a-b"]),
        (None, []),
        (0, ["--a-b", "0"]),
        (0.82, ["--a-b", "0.82"]),
        ("x y", ["--a-b", "x y"]),
        ({"z": 1, "a": [True]}, ["--a-b", '{"a":[true],"z":1}']),
    ],
)
def test_one_option(value: object, words: list[str]) -> None:
    assert option("a_b", value) == words


def test_environment_what_one_rank_needs_wins(spec_of: Any) -> None:
    spec = spec_of(1)
    spec["environment"]["GLOO_SOCKET_IFNAME"] = "shared0"
    seen = vllm_environment(spec, {"PATH": "/bin", "VLLM_API_KEY": "secret"})
    assert seen["GLOO_SOCKET_IFNAME"] == "eth0" and seen["VLLM_HOST_IP"] == "172.31.77.12"
    assert seen["VLLM_API_KEY"] == "secret" and seen["PATH"] == "/bin"


def launch(tmp_path: Path, spec: dict[str, Any], *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "rank.json").write_text(json.dumps(spec))
    return subprocess.run(
        [sys.executable, "-m", "sparkmesh_runtime.launch", str(tmp_path / "rank.json"), *flags],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_print_shows_the_command_and_no_key(spec_of: Any, tmp_path: Path) -> None:
    done = launch(tmp_path, spec_of(2), "--print", VLLM_API_KEY="do-not-show")
    assert done.returncode == 0 and done.stdout.startswith("vllm serve /models/tiny/main ")
    assert "do-not-show" not in done.stdout + done.stderr


def test_a_broken_spec_exits_2(spec_of: Any, tmp_path: Path) -> None:
    done = launch(tmp_path, spec_of(0) | {"size": 0})
    assert done.returncode == 2 and "size: seen 0" in done.stderr


def test_a_failed_check_exits_3_and_starts_nothing(spec_of: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    vllm = tmp_path / "vllm"
    vllm.write_text(f"#!/bin/sh\ntouch {started}\n")
    vllm.chmod(0o755)
    done = launch(tmp_path, spec_of(1), PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 3 and not started.exists()
    assert any(
        line.startswith("fail") and "image.identity" in line and "fix:" in line for line in done.stdout.splitlines()
    )


def test_a_proved_rank_becomes_vllm(spec_of: Any, tmp_path: Path) -> None:
    store = tmp_path / "model"
    (store / ".sparkmesh").mkdir(parents=True)
    (store / "config.json").write_text("{}")
    spec = spec_of(1)
    spec["fabric"]["links"], spec["guard"]["start_floor_bytes"] = [], 1
    spec["model"]["path"] = str(store)
    (store / ".sparkmesh" / "manifest.json").write_text(
        json.dumps({"manifest": spec["model"]["manifest"], "files": {"config.json": {"size": 2}}})
    )
    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\necho "pid $$ argv $*"\necho "host $VLLM_HOST_IP key $VLLM_API_KEY"\nexit 7\n')
    vllm.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SPARKMESH_IMAGE_IDENTITY": spec["image"]["identity"],
        "VLLM_API_KEY": "k",
    }
    checked = launch(tmp_path, spec, "--check", **environment)
    assert checked.returncode == 0 and "exec" not in checked.stdout
    done = launch(tmp_path, spec, **environment)
    assert done.returncode == 7, done.stdout + done.stderr
    assert "--node-rank 1" in done.stdout and "host 172.31.77.12 key k" in done.stdout
    gone = launch(tmp_path, spec, **environment | {"PATH": str(tmp_path / "empty")})
    assert gone.returncode == 4 and "wanted vLLM's command in PATH" in gone.stderr
