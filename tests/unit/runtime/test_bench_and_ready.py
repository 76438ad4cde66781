"""Readiness and bench against a real HTTP server that streams."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from sparkmesh_runtime import bench, ready


def test_a_token_is_ready_and_the_key_travels_in_the_header(api: Any) -> None:
    api.behaviour = {"key": "k1"}
    proof = ready.prove(api.url, "tiny", 5, "k1")
    assert proof.ready and proof.text == "t0" and proof.reason == ""
    assert api.seen[0]["body"]["max_tokens"] == 1 and api.seen[0]["authorization"] == "Bearer k1"


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ({"status": 500}, 'HTTP 500: {"error": "EngineDeadError"}'),
        ({"key": "other"}, "HTTP 401"),
        ({"tokens": 0}, "0 tokens generated, wanted 1"),
        ({"tokens": None}, "TypeError"),
    ],
)
def test_not_ready_says_why(api: Any, behaviour: dict[str, Any], reason: str) -> None:
    api.behaviour = behaviour
    proof = ready.prove(api.url, "tiny", 5)
    assert not proof.ready and reason in proof.reason


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        proof = ready.wait(f"http://127.0.0.1:{port}", "tiny", timeout=0.3, pause=0.1)
    assert not proof.ready and "refused" in proof.reason


def test_a_silent_server_runs_into_the_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        proof = ready.prove(f"http://127.0.0.1:{silent.getsockname()[1]}", "tiny", 0.2)
    assert not proof.ready and "timed out" in proof.reason and proof.seconds >= 0.2


def test_bench_measures_what_the_server_does(api: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    api.behaviour = {"first_s": 0.1, "chunk_s": 0.05, "key": "k2"}
    monkeypatch.setenv("VLLM_API_KEY", "k2")
    assert (
        bench.main(["--url", api.url, "--model", "tiny", "--requests", "4", "--concurrency", "2", "--max-tokens", "9"])
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    # 9 tokens in 5 chunks: 0.1 s to the first, then 4 pauses of 0.05 s; a busy machine is only ever slower.
    assert result["tokens"] == 36
    assert result["ttft_ms"]["min"] >= 100
    assert 0 < result["stream_tokens_per_s"]["max"] <= 8 / 0.2
    assert result["wall_s"] >= 0.6 and result["aggregate_tokens_per_s"] == pytest.approx(
        36 / result["wall_s"], rel=0.01
    )
    assert result["determinism"] == {"status": "ok", "tokens": 9, "first_difference": None}
    prompts = [seen["body"]["prompt"] for seen in api.seen if seen["body"].get("stream")]
    assert len(set(prompts)) == 4


def test_bench_runs_streams_side_by_side(api: Any) -> None:
    api.behaviour = {"first_s": 0.4}
    result = bench.bench(bench.Target(api.url, "tiny"), requests=4, concurrency=4, max_tokens=2)
    assert result["wall_s"] < 4 * 0.4


def test_two_answers_that_differ_fail(api: Any, capsys: pytest.CaptureFixture[str]) -> None:
    api.behaviour = {"unsteady": True}
    assert bench.main(["--url", api.url, "--model", "tiny", "--requests", "1", "--max-tokens", "3"]) == 1
    assert json.loads(capsys.readouterr().out)["determinism"] == {"status": "fail", "tokens": 3, "first_difference": 2}


def test_tokens_that_are_not_told_are_unobserved(api: Any) -> None:
    api.behaviour = {"no_logprobs": True}
    assert bench.determinism(bench.Target(api.url, "tiny"), 3)["status"] == "unobserved"


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [({"no_usage": True}, "include_usage"), ({"break": True}, "without [DONE]"), ({"status": 500}, "HTTPError")],
)
def test_what_cannot_be_measured_is_an_error(
    api: Any, behaviour: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    api.behaviour = behaviour
    assert bench.main(["--url", api.url, "--model", "tiny", "--requests", "1", "--max-tokens", "3"]) == 1
    assert said in capsys.readouterr().err


def test_one_token_has_no_rate() -> None:
    assert bench.Stream(first=0.1, total=0.1, tokens=1).rate is None
    assert bench.Stream(first=0.1, total=1.1, tokens=5).rate == pytest.approx(4.0)


def test_no_two_prompts_share_a_prefix() -> None:
    firsts = {bench.prompt(index).split()[0] for index in range(100)}
    assert len(firsts) == 100
