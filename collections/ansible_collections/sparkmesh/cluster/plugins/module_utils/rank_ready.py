"""Starting a rank and waiting until it is ready. Ready is a generated token (rank 0) or the head's API (the others)."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils import rank, units
from ansible_collections.sparkmesh.cluster.plugins.module_utils.progress import PROGRESS_DIR, Progress

# What vLLM and our launcher write, in the order in which it comes; checked against vLLM 0.32's source.
MARKERS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("preflight", re.compile(r"^rank \d+ of \d+ on ")),
    ("container started", re.compile(r"^exec vllm serve ")),
    ("model loading", re.compile(r"Starting to load model|Model loading started")),
    ("weights loaded", re.compile(r"Loading weights took|Model loading took")),
    ("KV cache sized", re.compile(r"KV cache size: |Available KV cache memory")),
    ("serving", re.compile(r"Application startup complete|Starting vLLM server on ")),
)
PHASES = ("starting", *(name for name, _ in MARKERS), "ready")
LOG_LINES = 40
# Rank 0 opens the rendezvous when vLLM has imported itself and keeps it open while it lives.
RENDEZVOUS_OPENS_S = 300.0
RENDEZVOUS_CLOSED_S = 15.0


def phase_of(log: str) -> str:
    """The furthest phase that a log shows."""
    lines = log.splitlines()
    return next(
        (name for name, pattern in reversed(MARKERS) if any(pattern.search(line) for line in lines)), "starting"
    )


def ask(
    spec: Mapping[str, Any], host: str, path: str, *, timeout: float, body: dict[str, Any] | None = None, key: str = ""
) -> tuple[int, str]:
    """(status, text) of one HTTP request to the API, a POST when there is a body, or (0, reason).

    Never raises for what a network can do.

    With TLS on, the certificate is not verified: this asks our own group over its own addresses, and whether clients
    may trust the certificate is another check.
    """
    port = spec["api"]["port"]
    link: http.client.HTTPConnection
    if "ssl_certfile" in spec["vllm"]["options"]:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        link = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
    else:
        link = http.client.HTTPConnection(host, port, timeout=timeout)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        link.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        answer = link.getresponse()
        return answer.status, answer.read(65536).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, f"{type(error).__name__}: {error}"
    finally:
        link.close()


def prove(spec: Mapping[str, Any], key: str, timeout: float) -> str:
    """Empty when this rank is proved ready, else the reason."""
    if spec["rank"] != 0:
        status, text = ask(spec, spec["head"]["address"], "/health", timeout=min(timeout, 5.0))
        return "" if status == 200 else f"rank 0 /health: {status or text}"
    host = "127.0.0.1" if spec["api"]["host"] == "0.0.0.0" else spec["api"]["host"]
    body = {"model": spec["model"]["name"], "prompt": "1 2 3", "max_tokens": 1, "temperature": 0}
    status, text = ask(spec, host, "/v1/completions", timeout=timeout, body=body, key=key)
    if status != 200:
        return f"no token: {f'HTTP {status} ' if status else ''}{text[:300]}"
    try:
        tokens = json.loads(text)["usage"]["completion_tokens"]
    except (ValueError, LookupError, TypeError) as error:
        return f"no token: the answer is not a completion ({type(error).__name__}: {error})"
    return "" if isinstance(tokens, int) and tokens >= 1 else f"no token: {tokens} generated, wanted 1"


class Rendezvous:
    """What rank 0's rendezvous says about rank 0 while the others wait for its API.

    A worker of vLLM waits for a lost rank 0 for ever, and Ansible waits for the slowest rank: without this, one failed
    rank 0 would cost the whole start timeout before its reason is shown.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.where = (str(spec["head"]["address"]), int(spec["head"]["master_port"]))
        self.opened = False
        self.last_open = time.monotonic()

    def lost(self) -> str:
        """Why rank 0 must be taken for gone, empty while it need not."""
        try:
            socket.create_connection(self.where, timeout=2.0).close()
        except OSError:
            closed = time.monotonic() - self.last_open
            if closed <= (RENDEZVOUS_CLOSED_S if self.opened else RENDEZVOUS_OPENS_S):
                return ""
            seen = f"closed for {closed:.0f} s after it was open" if self.opened else f"never open in {closed:.0f} s"
            return f"rank 0's rendezvous at {self.where[0]}:{self.where[1]} is {seen}, wanted open; fix: see rank 0"
        self.opened, self.last_open = True, time.monotonic()
        return ""


def api_key(node: rank.Node) -> str:
    """The API key installed for this rank, empty when the API has none."""
    pairs = (line.partition("=") for line in (node.text(units.ENV_PATH) or "").splitlines())
    return next((value for name, _, value in pairs if name == "VLLM_API_KEY"), "")


def log_tail(node: rank.Node, lines: int = LOG_LINES) -> list[str]:
    """The last lines of the rank's journal."""
    asked = node.ask("journalctl", "-u", units.RANK_UNIT, "-o", "cat", "--no-pager", "-n", str(lines))
    return asked.out.splitlines() or [f"journal unobserved: {asked.complaint()}"]


def log_phase(node: rank.Node, invocation: str) -> str:
    """The phase of this start: an earlier start of the same unit must not count."""
    if not invocation:
        return "starting"
    asked = node.ask("journalctl", f"_SYSTEMD_INVOCATION_ID={invocation}", "-o", "cat", "--no-pager", "-n", "2000")
    return phase_of(asked.out)


def ensure(
    node: rank.Node, spec: Mapping[str, Any], allow_restart: bool, timeout: float, poll: float = 1.0
) -> dict[str, Any]:
    """Bring the installed rank up and wait for the proof: {phase, seconds}. Raises RankError with phase and log."""
    now, state = rank.running(node), rank.unit_state(node, units.RANK_UNIT)
    wanted = {"release": spec["release"], "config": rank.wanted_config(node)}
    # An active unit without a container was started a moment ago: it is waited for, never started twice.
    up = rank.is_active(state)
    if up and now is not None and now != wanted:
        if not allow_restart:
            kind = "release" if now["release"] != spec["release"] else "an older configuration of release"
            raise rank.RankError(
                f"rank {spec['rank']} runs {kind} {now['release']}, wanted {spec['release']} as installed now; "
                "restarting interrupts every request. Fix: set release_allow_restart: true",
                phase="running",
            )
        rank.stop(node)
        up = False
    if not up:
        if spec["rank"] != 0 and not node.check_mode:
            _head_is_down(spec, poll)
        _start(node, spec)
        if node.check_mode:
            return {"phase": "would start", "seconds": 0.0}
    elif node.check_mode:
        reason = prove(spec, api_key(node), 10.0)
        return {"phase": "ready" if not reason else log_phase(node, state.get("InvocationID", "")), "seconds": 0.0}
    return _wait(node, spec, timeout, poll)


def _head_is_down(spec: Mapping[str, Any], poll: float) -> None:
    """Wait until rank 0 of an earlier run has stopped serving; RankError when it does not within its stop timeout.

    A new rank 0 cannot be healthy before this rank joins it. So a healthy one is an old one: its answer would pass for
    our readiness, and its rendezvous could take us in.
    """
    begun, limit = time.monotonic(), float(spec["timeouts"]["stop_s"]) + units.STOP_SLACK_S
    while not prove(spec, "", 5.0):
        seconds = round(time.monotonic() - begun, 1)
        if seconds >= limit:
            raise rank.RankError(
                f"rank 0 at {spec['head']['address']} still serves after {seconds} s, wanted it stopped before rank "
                f"{spec['rank']} starts; fix: stop the whole group, then start it",
                phase="starting",
                seconds=seconds,
            )
        time.sleep(poll)


def _start(node: rank.Node, spec: Mapping[str, Any]) -> None:
    if not node.check_mode:
        node.ask("systemctl", "reset-failed", units.RANK_UNIT, units.GUARD_UNIT)
        node.path(units.READY_PATH).unlink(missing_ok=True)
    try:
        # The guard is Type=notify: this returns after its first good sample, or fails.
        node.act(f"start {units.GUARD_UNIT}", "systemctl", "start", units.GUARD_UNIT)
        node.act(f"start {units.RANK_UNIT} with release {spec['release']}", "systemctl", "start", units.RANK_UNIT)
    except rank.RankError as error:
        guard = node.ask("journalctl", "-u", units.GUARD_UNIT, "-o", "cat", "--no-pager", "-n", "10").out.splitlines()
        raise rank.RankError(
            f"{error} | guard: {' / '.join(guard[-3:]) or 'silent'}", phase="starting", log=log_tail(node)
        ) from error


def _wait(node: rank.Node, spec: Mapping[str, Any], timeout: float, poll: float) -> dict[str, Any]:
    begun, phase, reason = time.monotonic(), "starting", "not asked yet"
    progress, key = Progress("rank", str(node.path(PROGRESS_DIR))), api_key(node)
    rendezvous = Rendezvous(spec)
    while True:
        seconds = round(time.monotonic() - begun, 1)
        state, guard = rank.unit_state(node, units.RANK_UNIT), rank.unit_state(node, units.GUARD_UNIT)
        phase = log_phase(node, state.get("InvocationID", ""))
        progress.say(PHASES.index(phase), len(PHASES) - 1, f"rank {spec['rank']}: {phase}")
        for unit, seen in ((units.RANK_UNIT, state), (units.GUARD_UNIT, guard)):
            if not rank.is_active(seen):
                raise _failed(
                    node,
                    spec,
                    phase,
                    seconds,
                    f"{unit} is {seen.get('ActiveState', 'unobserved')} "
                    f"({seen.get('Result', 'no result')}), wanted active",
                )
        left = max(timeout - seconds, 1.0)
        reason = prove(spec, key, min(left, 60.0))
        if not reason:
            marker = node.path(units.READY_PATH)
            marker.parent.mkdir(parents=True, exist_ok=True)
            if not marker.exists():
                marker.touch()
                node.actions.append(f"rank {spec['rank']} proved ready")
            progress.say(len(PHASES) - 1, len(PHASES) - 1, f"rank {spec['rank']}: ready")
            return {"phase": "ready", "seconds": round(time.monotonic() - begun, 1)}
        lost = rendezvous.lost() if spec["rank"] != 0 else ""
        if lost:
            raise _failed(node, spec, phase, seconds, lost)
        if time.monotonic() - begun + poll > timeout:
            raise _failed(node, spec, phase, seconds, f"not ready after {timeout:g} s ({reason})")
        time.sleep(poll)


def _failed(node: rank.Node, spec: Mapping[str, Any], phase: str, seconds: float, what: str) -> rank.RankError:
    log = log_tail(node)
    cause = next((line.strip() for line in reversed(log) if line.startswith(("fail ", "docker: "))), "")
    if cause:
        what = f"{what}; {cause}"
    fix = (
        f"read `journalctl -u {units.RANK_UNIT}` on this node and on the other ranks: the rank that failed first "
        "names the cause"
    )
    text = f"rank {spec['rank']}, release {spec['release']}, phase {phase} after {seconds} s: {what}"
    if "; fix: " not in what:
        text = f"{text}; fix: {fix}"
    return rank.RankError(text, phase=phase, seconds=seconds, log=log)
