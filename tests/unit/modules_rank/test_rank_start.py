"""Starting, waiting, consent and failures against programs that behave like systemd and a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils import rank, rank_ready, units

A, B = "r-aaaaaaaaaaaa", "r-bbbbbbbbbbbb"
STARTED = [
    "systemctl reset-failed sparkmesh-rank.service sparkmesh-guard.service",
    "systemctl start sparkmesh-guard.service",
    "systemctl start sparkmesh-rank.service",
]
STOPPED = ["systemctl stop sparkmesh-rank.service", "systemctl stop sparkmesh-guard.service"]
LOG = """rank 1 of 3 on spark-2, release r-aaaaaaaaaaaa, group sha256:abab
ok         image.identity: seen a, wanted a
exec vllm serve /models/tiny/main
INFO [cpu_model_runner.py:68] Starting to load model /models/tiny/main...
INFO [default_loader.py:502] Loading weights took 0.31 seconds
INFO [kv_cache_utils.py:2328] CPU KV cache size: 4,096 tokens
INFO [entry.py:140] Starting vLLM server on http://0.0.0.0:8000
"""


class Head(BaseHTTPRequestHandler):
    """/health, and completions of `server.tokens` tokens for whoever knows `server.key`; closed until `server.after`
    requests came and, as a real head, while `server.joined` (the container of the rank it waits for) is not there."""

    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, document: dict[str, Any], allowed: bool = True) -> None:
        self.server.count += 1
        waits = self.server.joined is not None and not self.server.joined.exists()
        status = 503 if waits or self.server.count <= self.server.after else 200 if allowed else 401
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        known = not self.server.key or self.headers.get("Authorization") == f"Bearer {self.server.key}"
        self._answer({"usage": {"completion_tokens": self.server.tokens}}, known)


@pytest.fixture
def head() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Head)
    server.count, server.after, server.tokens, server.key = 0, 0, 1, ""
    server.joined = None
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def spec_at(world: Any, head: Any, **changes: Any) -> dict[str, Any]:
    head.joined = world.state / "container"
    spec: dict[str, Any] = world.spec(api={"host": "127.0.0.1", "port": head.server_address[1]}, **changes)
    return spec


def ready(
    world: Any, spec: dict[str, Any], allow: bool = False, check: bool = False, timeout: float = 5.0
) -> tuple[rank.Node, dict[str, Any]]:
    node = world.node(check)
    return node, rank_ready.ensure(node, spec, allow, timeout, poll=0.05)


@pytest.mark.parametrize("number", [0, 1])
def test_start_prove_mark_and_stay(world: Any, head: Any, number: int) -> None:
    spec = spec_at(world, head, rank=number)
    head.after = 2
    world.install(spec=spec)
    world.calls()
    node, result = ready(world, spec)
    assert result["phase"] == "ready" and node.changed and world.calls() == STARTED and head.count == 3
    assert world.file("/run/sparkmesh/ready").exists()
    progress = json.loads(world.file("/run/sparkmesh/progress/rank.json").read_text())
    assert progress["step"] == progress["of"] and "ready" in progress["text"]
    again, result = ready(world, spec)
    assert result["phase"] == "ready" and not again.changed and world.calls() == []
    seen = rank.observe(world.node())
    assert seen["ready"] and seen["running_release"] == A and not seen["restart_needed"]


def test_another_release_needs_consent(world: Any, head: Any) -> None:
    old, new = spec_at(world, head), spec_at(world, head, release=B)
    world.install(spec=old)
    ready(world, old)
    world.install(spec=new)
    world.calls()
    assert rank.observe(world.node())["restart_needed"]
    with pytest.raises(rank.RankError, match=f"runs release {A}, wanted {B}.*release_allow_restart"):
        ready(world, new)
    assert world.calls() == [] and rank.observe(world.node())["running_release"] == A
    node, _ = ready(world, new, allow=True)
    assert world.calls() == STOPPED + STARTED and rank.observe(world.node())["running_release"] == B
    assert f"start sparkmesh-rank.service with release {B}" in node.actions


def test_other_container_arguments_need_consent_too(world: Any, head: Any) -> None:
    spec = spec_at(world, head)
    world.install(spec=spec)
    ready(world, spec)
    world.install(spec=spec, args=("--gpus=all",))
    with pytest.raises(rank.RankError, match="older configuration of release"):
        ready(world, spec)


def test_a_stopped_rank_starts_without_consent(world: Any, head: Any) -> None:
    spec = spec_at(world, head)
    world.install(spec=spec)
    ready(world, spec)
    world.calls()
    node = world.node()
    rank.stop(node)
    assert world.calls() == STOPPED and node.changed and not world.file("/run/sparkmesh/ready").exists()
    again = world.node()
    rank.stop(again)
    assert not again.changed and world.calls() == []
    ready(world, spec)
    assert world.calls() == STARTED


def test_check_mode_starts_nothing(world: Any, head: Any) -> None:
    spec = spec_at(world, head)
    world.install(spec=spec)
    world.calls()
    before = world.tree()
    node, result = ready(world, spec, check=True)
    assert result["phase"] == "would start" and node.changed and world.calls() == [] and world.tree() == before
    ready(world, spec)
    node, result = ready(world, spec, check=True)
    assert result["phase"] == "ready" and not node.changed


def test_a_rank_that_dies_is_reported_at_once_with_phase_log_and_fix(world: Any, head: Any) -> None:
    spec = spec_at(world, head)
    head.after = 1000
    (world.state / "dies").touch()
    (world.state / "journal").write_text("\n".join(LOG.splitlines()[:5]) + "\n")
    world.install(spec=spec)
    with pytest.raises(rank.RankError, match=r"phase weights loaded.*sparkmesh-rank.service is failed") as caught:
        ready(world, spec, timeout=60)
    assert caught.value.facts["log"][-1].endswith("Loading weights took 0.31 seconds")
    assert caught.value.facts["seconds"] < 10 and "journalctl -u sparkmesh-rank.service" in str(caught.value)


def test_the_failed_check_of_the_launcher_is_the_fix(world: Any, head: Any) -> None:
    spec = spec_at(world, head)
    head.after = 1000
    line = "fail       fabric.mtu eth9: seen 1500, wanted 9000; fix: run the fabric play"
    (world.state / "journal").write_text(LOG.splitlines()[0] + f"\n{line}\n1 check(s) failed, vLLM is not started\n")
    (world.state / "dies").touch()
    world.install(spec=spec)
    with pytest.raises(rank.RankError, match=r"phase preflight.*seen 1500, wanted 9000; fix: run the fabric play"):
        ready(world, spec)


def test_a_guard_that_does_not_start_keeps_the_rank_down(world: Any, head: Any) -> None:
    spec = spec_at(world, head)
    (world.state / "refuse-sparkmesh-guard.service").touch()
    (world.state / "journal").write_text("breach: MemAvailable 5 bytes, wanted at least 6 bytes\n")
    world.install(spec=spec)
    world.calls()
    with pytest.raises(rank.RankError, match=r"start sparkmesh-guard.service.*wanted at least 6 bytes"):
        ready(world, spec)
    assert world.calls() == STARTED[:2]


def test_a_guard_that_dies_later_is_seen(world: Any, head: Any) -> None:
    spec = spec_at(world, head)
    world.install(spec=spec)
    ready(world, spec)
    (world.state / "sparkmesh-guard.service").write_text("failed")
    with pytest.raises(rank.RankError, match=r"sparkmesh-guard.service is failed"):
        ready(world, spec)


@pytest.mark.parametrize(
    ("number", "fault", "said"),
    [
        (1, {"after": 1000}, "rank 0 /health: 503"),
        (0, {"after": 1000}, "no token: HTTP 503"),
        (0, {"tokens": 0}, "no token: 0 generated"),
        (0, {"tokens": None}, "no token: None generated"),
        (0, {"key": "other"}, "no token: HTTP 401"),
    ],
)
def test_the_wait_is_bounded_and_says_what_is_missing(
    world: Any, head: Any, number: int, fault: dict[str, Any], said: str
) -> None:
    spec = spec_at(world, head, rank=number)
    vars(head).update(fault)
    (world.state / "journal").write_text(LOG)
    world.install(spec=spec, secrets={"VLLM_API_KEY": "mine"})
    with pytest.raises(rank.RankError, match=rf"phase serving .*not ready after 0.3 s \({said}"):
        ready(world, spec, timeout=0.3)
    assert not world.file("/run/sparkmesh/ready").exists()


def test_the_installed_key_opens_the_api(world: Any, head: Any) -> None:
    spec = spec_at(world, head, rank=0)
    head.key = "k1"
    world.install(spec=spec, secrets={"VLLM_API_KEY": "k1"})
    assert ready(world, spec)[1]["phase"] == "ready"


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        (0, "starting"),
        (1, "preflight"),
        (2, "preflight"),
        (3, "container started"),
        (4, "model loading"),
        (5, "weights loaded"),
        (6, "KV cache sized"),
        (7, "serving"),
    ],
)
def test_phases_from_the_log(lines: int, phase: str) -> None:
    assert rank_ready.phase_of("\n".join(LOG.splitlines()[:lines])) == phase


def test_docker_names_the_cause(world: Any, head: Any) -> None:
    spec = spec_at(world, head)
    head.after = 1000
    (world.state / "dies").touch()
    (world.state / "journal").write_text(
        "docker: Error response from daemon: no such image.\nSee 'docker run --help'.\n"
    )
    world.install(spec=spec)
    with pytest.raises(rank.RankError, match=r"docker: Error response from daemon: no such image\.; fix: read"):
        ready(world, spec)


def test_the_head_of_an_earlier_run_must_be_gone_first(world: Any, head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_at(world, head, timeouts={"start_s": 5, "stop_s": 0.2})
    monkeypatch.setattr(units, "STOP_SLACK_S", 0)
    world.install(spec=spec)
    world.calls()
    head.joined = None
    with pytest.raises(rank.RankError, match=r"rank 0 at 127.0.0.1 still serves .*fix: stop the whole group"):
        ready(world, spec)
    assert world.calls() == []
