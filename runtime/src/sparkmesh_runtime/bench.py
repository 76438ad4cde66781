"""How fast and how repeatable the endpoint answers: `python -m sparkmesh_runtime.bench --url … --model …`

Each stream gets its own prompt: identical prompts would hit the prefix cache and flatter the result. Token counts come
from the server's usage record; a server that sends none is an error, chunks are not counted as tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sparkmesh_runtime.ready import KEY_VARIABLE, request

WORDS = ("copper", "river", "lantern", "orbit", "meadow", "cipher", "harbor", "velvet")


class BenchError(Exception):
    """The endpoint answered something that cannot be measured."""


@dataclass(frozen=True)
class Target:
    """The endpoint: `url` is scheme://host:port, `timeout` seconds without a byte."""

    url: str
    model: str
    api_key: str = ""
    timeout: float = 600.0


@dataclass(frozen=True)
class Stream:
    """One streamed answer: seconds to the first token, seconds in all, tokens generated."""

    first: float
    total: float
    tokens: int

    @property
    def rate(self) -> float | None:
        """Tokens a second after the first one; None when there is no interval to divide by."""
        return (self.tokens - 1) / (self.total - self.first) if self.tokens > 1 and self.total > self.first else None


def prompt(index: int) -> str:
    """A prompt that differs from its first words on, so that no two streams share a cached prefix."""
    words = [WORDS[(index >> shift) % len(WORDS)] for shift in (0, 3, 6)]
    return f"{index} {' '.join(words)}. Write a long story about these things:"


def events(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON documents of a server-sent event stream, up to [DONE]. Raises BenchError when the stream breaks off."""
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        document: dict[str, Any] = json.loads(data)
        if "error" in document:
            raise BenchError(f"the stream carried an error: {str(document['error'])[:300]}")
        yield document
    raise BenchError("the stream ended without [DONE]")


def stream(target: Target, text: str, max_tokens: int) -> Stream:
    """Stream one completion at temperature 0. Raises BenchError or OSError."""
    body = {
        "model": target.model,
        "prompt": text,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    begun = time.perf_counter()
    first = last = None
    tokens = None
    with urllib.request.urlopen(
        request(f"{target.url}/v1/completions", body, target.api_key), timeout=target.timeout
    ) as answer:
        for document in events(iter(answer)):
            if document.get("choices"):
                last = time.perf_counter()
                first = first or last
            tokens = (document.get("usage") or {}).get("completion_tokens", tokens)
    if first is None or last is None or not tokens:
        raise BenchError(
            f"seen {tokens} tokens in the usage record, wanted at least 1 and a streamed choice; "
            "fix: use a server that honours stream_options.include_usage"
        )
    return Stream(first - begun, last - begun, tokens)


def tokens_of(target: Target, text: str, max_tokens: int) -> list[str] | None:
    """The tokens of one completion at temperature 0, None when the server does not tell them."""
    body = {"model": target.model, "prompt": text, "max_tokens": max_tokens, "temperature": 0, "logprobs": 1}
    with urllib.request.urlopen(
        request(f"{target.url}/v1/completions", body, target.api_key), timeout=target.timeout
    ) as answer:
        choice = json.load(answer)["choices"][0]
    found = (choice.get("logprobs") or {}).get("tokens")
    return [str(token) for token in found] if found else None


def determinism(target: Target, max_tokens: int) -> dict[str, Any]:
    """One prompt twice at temperature 0: {status: ok|fail|unobserved, tokens, first_difference}."""
    one, two = (tokens_of(target, prompt(0), max_tokens) for _ in range(2))
    if one is None or two is None:
        return {"status": "unobserved", "tokens": 0, "first_difference": None}
    pairs = enumerate(zip(one, two, strict=False))
    difference = next(
        (index for index, (left, right) in pairs if left != right),
        None if len(one) == len(two) else min(len(one), len(two)),
    )
    return {"status": "ok" if difference is None else "fail", "tokens": len(one), "first_difference": difference}


def bench(target: Target, requests: int, concurrency: int, max_tokens: int) -> dict[str, Any]:
    """Run everything; times in ms, rates in tokens a second. Raises BenchError or OSError, never a partial result."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        streams = list(pool.map(lambda index: stream(target, prompt(index + 1), max_tokens), range(requests)))
    wall = time.perf_counter() - begun
    rates = [each.rate for each in streams if each.rate is not None]
    total = sum(each.tokens for each in streams)
    return {
        "requests": requests,
        "concurrency": concurrency,
        "max_tokens": max_tokens,
        "model": target.model,
        "ttft_ms": _spread([each.first * 1000 for each in streams]),
        "stream_tokens_per_s": _spread(rates),
        "aggregate_tokens_per_s": round(total / wall, 3),
        "tokens": total,
        "wall_s": round(wall, 3),
        "determinism": determinism(target, max_tokens),
    }


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "mean": round(statistics.fmean(values), 3),
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the result as JSON; exit status 1 when it cannot be measured or two equal prompts answer unequally."""
    parser = argparse.ArgumentParser(description="Measure an OpenAI-compatible endpoint.")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds without a byte")
    chosen = parser.parse_args(arguments)
    if min(chosen.requests, chosen.concurrency, chosen.max_tokens) < 1:
        parser.error("--requests, --concurrency and --max-tokens must be at least 1")
    target = Target(chosen.url.rstrip("/"), chosen.model, os.environ.get(KEY_VARIABLE, ""), chosen.timeout)
    try:
        result = bench(target, chosen.requests, chosen.concurrency, chosen.max_tokens)
    except (BenchError, OSError, ValueError, LookupError) as error:
        print(f"bench of {target.url}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=1))
    return 1 if result["determinism"]["status"] == "fail" else 0


if __name__ == "__main__":
    sys.exit(main())
