"""An example spec for three ranks, and a small HTTP server that speaks the part of the OpenAI API we use."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

DIGEST = "sha256:" + "ab" * 32
LINKS = [("enp1s0f0np0", "rocep1s0f0", 8), ("enP2p1s0f0np0", "roceP2p1s0f0", 9)]
EXAMPLE: dict[str, Any] = {
    "schema": 1,
    "cluster": "lab",
    "rank": 0,
    "size": 3,
    "node": "spark-1",
    "address": "172.31.77.11",
    "head": {"address": "172.31.77.11", "master_port": 29501},
    "api": {"host": "0.0.0.0", "port": 8000},
    "image": {"identity": DIGEST, "reference": f"127.0.0.1:5000/sparkmesh@{DIGEST}"},
    "model": {"path": "/models/tiny/main", "name": "tiny-dsv3", "manifest": DIGEST},
    "vllm": {
        "options": {
            "dtype": "bfloat16",
            "max_model_len": 512,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "cudagraph_capture_sizes": [1, 2, 4],
            "speculative_config": {"method": "dspark", "num_speculative_tokens": 5},
            "quantization": None,
        }
    },
    "environment": {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "900"},
    "node_environment": {"GLOO_SOCKET_IFNAME": "eth0"},
    "fabric": {"mtu": 9000, "links": []},
    "guard": {
        "start_floor_bytes": 5 << 30,
        "start_period_s": 0.25,
        "steady_floor_bytes": 3 << 30,
        "steady_period_s": 2,
    },
    "timeouts": {"start_s": 900, "stop_s": 60},
    "release": "r-0123456789ab",
    "group_hash": DIGEST,
}


@pytest.fixture
def spec_of() -> Callable[[int], dict[str, Any]]:
    """A factory: the spec of rank 0, 1 or 2."""

    def make(rank: int) -> dict[str, Any]:
        spec = copy.deepcopy(EXAMPLE)
        spec["fabric"]["links"] = [
            {
                "interface": interface,
                "hca": hca,
                "address": f"10.20.{net}.{11 + rank}",
                "peer": f"spark-{(rank + 1) % 3 + 1}",
                "peer_address": f"10.20.{net}.{11 + (rank + 1) % 3}",
            }
            for interface, hca, net in LINKS
        ]
        return spec | {"rank": rank, "node": f"spark-{rank + 1}", "address": f"172.31.77.{11 + rank}"}

    return make


class Api(BaseHTTPRequestHandler):
    """Completions, streamed or not; how it behaves is read from `server.behaviour`, what it got is kept in `seen`."""

    server: ApiServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        how, count = self.server.behaviour, body["max_tokens"]
        self.server.seen.append({"body": body, "authorization": self.headers.get("Authorization")})
        if how.get("key") and self.headers.get("Authorization") != f"Bearer {how['key']}":
            self._send(401, {"error": "Unauthorized"})
        elif how.get("status"):
            self._send(how["status"], {"error": "EngineDeadError"})
        elif body.get("stream"):
            self._stream(count, how)
        else:
            self._complete(body, count, how)

    def _complete(self, body: dict[str, Any], count: int, how: dict[str, Any]) -> None:
        tokens = [f"t{index}" for index in range(count)]
        if how.get("unsteady"):
            tokens[-1] += str(len(self.server.seen))
        logprobs = {"tokens": tokens} if body.get("logprobs") and not how.get("no_logprobs") else None
        self._send(
            200,
            {
                "choices": [{"text": "".join(tokens), "logprobs": logprobs}],
                "usage": {"completion_tokens": how.get("tokens", count)},
            },
        )

    def _send(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, count: int, how: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        time.sleep(how.get("first_s", 0.0))
        # Two tokens a chunk, as a server with speculative decoding sends them: chunks are not tokens.
        for start in range(0, count, 2):
            if start:
                time.sleep(how.get("chunk_s", 0.0))
            self._event({"choices": [{"text": " ".join(f"t{index}" for index in range(start, min(start + 2, count)))}]})
        if how.get("break"):
            return
        if not how.get("no_usage"):
            self._event({"choices": [], "usage": {"completion_tokens": count}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, document: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(document).encode() + b"\n\n")
        self.wfile.flush()


class ApiServer(ThreadingHTTPServer):
    """The server with its behaviour and its memory."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        self.behaviour: dict[str, Any] = {}
        self.seen: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A running server on a free loopback port."""
    server = ApiServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
