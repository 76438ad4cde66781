"""Ready means: the API generated a token. `python -m sparkmesh_runtime.ready --url … --model …`

An open port, /health and /v1/models all answer 200 while a peer rank is dead; a token needs every rank.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

KEY_VARIABLE = "VLLM_API_KEY"


@dataclass(frozen=True)
class Proof:
    """Whether a token was generated, how long that took in seconds, the text, and the reason when it was not."""

    ready: bool
    seconds: float
    text: str
    reason: str


def request(url: str, body: dict[str, Any], api_key: str = "") -> urllib.request.Request:
    """A JSON POST; the key, if any, goes into the header only."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    return urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)


def prove(url: str, model: str, timeout: float = 60.0, api_key: str = "") -> Proof:
    """Ask for one token at temperature 0 from `url` (scheme://host:port). Never raises for what a server can do."""
    begun = time.monotonic()
    body = {"model": model, "prompt": "1 2 3", "max_tokens": 1, "temperature": 0}
    text, reason = "", ""
    try:
        with urllib.request.urlopen(request(f"{url}/v1/completions", body, api_key), timeout=timeout) as answer:
            document = json.load(answer)
        text = document["choices"][0]["text"]
        tokens = document["usage"]["completion_tokens"]
        if tokens < 1:
            reason = f"{tokens} tokens generated, wanted 1"
    except urllib.error.HTTPError as error:
        reason = f"HTTP {error.code}: {error.read(300).decode(errors='replace').strip()}"
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    return Proof(not reason, round(time.monotonic() - begun, 3), text, reason)


def wait(url: str, model: str, timeout: float, pause: float = 1.0, api_key: str = "") -> Proof:
    """Ask again every `pause` seconds until a token comes or `timeout` seconds are over; the last answer counts."""
    begun = time.monotonic()
    while True:
        left = timeout - (time.monotonic() - begun)
        proof = prove(url, model, max(left, 0.1), api_key)
        if proof.ready or time.monotonic() - begun + pause >= timeout:
            return proof
        time.sleep(pause)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the proof as JSON; exit status 0 when ready, else 1. The API key comes from VLLM_API_KEY only."""
    parser = argparse.ArgumentParser(description="Wait until the API generates a token.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds")
    chosen = parser.parse_args(arguments)
    proof = wait(chosen.url.rstrip("/"), chosen.model, chosen.timeout, api_key=os.environ.get(KEY_VARIABLE, ""))
    print(json.dumps(asdict(proof)))
    return 0 if proof.ready else 1


if __name__ == "__main__":
    sys.exit(main())
