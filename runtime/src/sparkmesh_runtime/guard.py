"""The memory guard: stops this node's rank before the node itself runs out of memory.

One file, standard library only: it also runs by itself on the node's python3, outside the container. Why it exists: a
GPU driver that cannot get memory takes ssh down for hours, and unified memory hides that until it is too late.

It samples MemAvailable. Until the ready marker appears it uses the spec's start floor and period, then the steady
ones. systemd hears READY=1 after the first good sample, so the rank is never started unguarded. A breach is a sample
below the floor, or MISSES unreadable samples in a row. On a breach it kills the container, stops the unit, writes
evidence and exits 1; the rank unit is bound to this one, so even a guard that dies takes the rank with it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One unreadable sample can be a signal at a bad moment; three in a row is a node that nobody watches.
MISSES = 3
TOP_PROCESSES = 20
UNIT, CONTAINER = "sparkmesh-rank.service", "sparkmesh-rank"


@dataclass(frozen=True)
class Phase:
    """A floor in bytes and a period in seconds."""

    name: str
    floor: int
    period: float


def read_phases(spec_path: Path) -> tuple[Phase, Phase]:
    """(start, steady) from the rank spec. Raises ValueError naming what is wrong: no limits, no guard, no rank."""
    try:
        guard = json.loads(spec_path.read_text(encoding="utf-8"))["guard"]
        start = Phase("start", int(guard["start_floor_bytes"]), float(guard["start_period_s"]))
        steady = Phase("steady", int(guard["steady_floor_bytes"]), float(guard["steady_period_s"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{spec_path}: no guard limits ({type(error).__name__}: {error}); wanted start_floor_bytes, "
            "start_period_s, steady_floor_bytes and steady_period_s in guard; fix: install the rank again"
        ) from error
    for phase in (start, steady):
        if phase.floor < 0 or not 0 < phase.period <= 10:
            raise ValueError(f"{spec_path}: {phase}, wanted a floor >= 0 and a period in (0, 10] s; fix: the inventory")
    return start, steady


def mem_available(meminfo: Path) -> int | None:
    """MemAvailable in bytes, None when it cannot be read."""
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def notify(message: str) -> None:
    """Tell systemd (sd_notify protocol); silent when nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)


def top_processes(proc: Path) -> list[dict[str, Any]]:
    """The largest processes by resident memory: [{pid, rss_bytes, command}]. Command lines are left out: they may
    carry what must not be written down."""
    page = os.sysconf("SC_PAGE_SIZE")
    found: list[tuple[int, int, str]] = []
    for entry in proc.glob("[0-9]*"):
        try:
            resident = int((entry / "statm").read_text(encoding="ascii").split()[1]) * page
            command = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except (OSError, ValueError, IndexError):
            continue  # it ended while we looked
        found.append((resident, int(entry.name), command))
    return [
        {"pid": pid, "rss_bytes": resident, "command": command}
        for resident, pid, command in sorted(found, reverse=True)[:TOP_PROCESSES]
    ]


def stop_rank() -> list[str]:
    """Kill the container, then stop its unit; says how each went.

    The container first: `docker stop` may wait a minute for vLLM, and the container's processes are not in the unit's
    control group, so killing the unit alone would leave them.
    """
    said = []
    for command in (["docker", "kill", "--signal", "KILL", CONTAINER], ["systemctl", "stop", "--no-block", UNIT]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
            said.append(f"{' '.join(command)}: exit {done.returncode} {done.stderr.strip()[:200]}".strip())
        except (OSError, subprocess.TimeoutExpired) as error:
            said.append(f"{' '.join(command)}: {error}")
    return said


def breach(reason: str, phase: Phase, seen: int | None, *, meminfo: Path, proc: Path, evidence: Path) -> None:
    """Stop the rank and leave a record. The record is taken before and written after: a write may block when memory
    is short, and the processes to blame are gone once the rank is stopped."""
    try:
        memory = meminfo.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError as error:
        memory = [f"unreadable: {error}"]
    record: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "reason": reason,
        "phase": phase.name,
        "seen_bytes": seen,
        "floor_bytes": phase.floor,
        "meminfo": memory,
        "processes": top_processes(proc),
    }
    print(f"breach: {reason}; stopping {UNIT}", file=sys.stderr, flush=True)
    record["stopped"] = stop_rank()
    target = evidence / f"guard-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    try:
        evidence.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        target.chmod(0o640)
        print(f"evidence: {target}", file=sys.stderr, flush=True)
    except OSError as error:
        print(f"evidence not written to {target}: {error}", file=sys.stderr, flush=True)


def watch(start: Phase, steady: Phase, *, meminfo: Path, ready: Path, proc: Path, evidence: Path) -> int:
    """Sample until a breach; returns 1. SIGTERM, the ordinary end, ends the process in the ordinary way."""
    said, misses = "", 0
    while True:
        phase = steady if ready.exists() else start
        seen = mem_available(meminfo)
        misses = misses + 1 if seen is None else 0
        if seen is not None and seen < phase.floor:
            reason = f"MemAvailable {seen} bytes, wanted at least {phase.floor} bytes in phase {phase.name}"
            breach(reason, phase, seen, meminfo=meminfo, proc=proc, evidence=evidence)
            return 1
        if misses >= MISSES:
            reason = f"{meminfo} unreadable {misses} times in a row, wanted MemAvailable"
            breach(reason, phase, None, meminfo=meminfo, proc=proc, evidence=evidence)
            return 1
        if seen is not None:
            message = f"WATCHDOG=1\nSTATUS=phase {phase.name}, {seen} bytes available, floor {phase.floor}"
            notify(message if said else f"READY=1\n{message}")
            if said != phase.name:
                print(f"phase {phase.name}: floor {phase.floor} bytes every {phase.period} s, seen {seen}", flush=True)
                said = phase.name
        time.sleep(phase.period)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 1 after a breach, 2 when the limits cannot be read (systemd then never hears READY)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--spec", type=Path, default=Path("/etc/sparkmesh/rank.json"))
    parser.add_argument("--meminfo", type=Path, default=Path("/proc/meminfo"))
    parser.add_argument("--proc", type=Path, default=Path("/proc"))
    parser.add_argument("--ready", type=Path, default=Path("/run/sparkmesh/ready"))
    parser.add_argument("--evidence", type=Path, default=Path("/var/lib/sparkmesh/evidence"))
    chosen = parser.parse_args(arguments)
    try:
        start, steady = read_phases(chosen.spec)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    # A marker from an earlier run would put this one under the lower floor.
    chosen.ready.unlink(missing_ok=True)
    return watch(start, steady, meminfo=chosen.meminfo, ready=chosen.ready, proc=chosen.proc, evidence=chosen.evidence)


if __name__ == "__main__":
    sys.exit(main())
