"""Progress lines and the summary, on the recorded events of site/recorded.yml."""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any

import pytest
from spark_cli.progress import HEARTBEAT_S, Progress


class Clock:
    """Shows the time of the event that is being handled."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def replay(events: list[dict[str, Any]], until: str = "") -> tuple[Progress, io.StringIO, Clock]:
    """Feeds events with their own times, up to the start of the task named ``until``."""
    times = [datetime.fromisoformat(event["created"]).timestamp() for event in events]
    clock, out = Clock(times[0]), io.StringIO()
    progress = Progress(out, clock)
    for event, clock.now in zip(events, times, strict=True):
        progress.event(event)
        if event["event"] == "runner_on_start" and event["event_data"]["task"] == until:
            break
    return progress, out, clock


def test_only_changes_failures_and_slow_tasks_get_a_line(events: list[dict[str, Any]]) -> None:
    _, out, _ = replay(events)
    text = out.getvalue()
    assert "Change with words" in text and "changed one two" in text
    assert "failed: one: Check: 1 of 1 checks failed" in text
    assert "Skipped everywhere" not in text
    assert "On the controller" not in text
    assert text.index("Costs") < text.index("Change with words") < text.index("Faults") < text.index("failed: one")


def test_summary_puts_failures_first_with_message_and_fix(events: list[dict[str, Any]]) -> None:
    progress, _, _ = replay(events)
    lines = progress.summary(2)
    assert lines[:3] == [
        "FAILED one: Check",
        "  message: 1 of 1 checks failed",
        "  fix:     set the MTU of enp1s0f0np0 to 9000",
    ]
    text = "\n".join(lines)
    assert "FAILED two: Items" in text and "false: The command exited with a non-zero return code. (rc 1)" in text
    assert lines[-1].startswith("FAILED (rc 2) in ") and "one ok=10 changed=3 failures=1 rescued=1" in lines[-1]


def test_rescued_failures_are_not_called_failed(events: list[dict[str, Any]]) -> None:
    progress, _, _ = replay(events)
    assert {f["task"] for f in progress.failures if f["status"] == "rescued"} == {"First try"}
    assert {f["task"] for f in progress.failures if f["status"] == "failed"} == {"Check", "Items"}


def test_seconds_of_the_plays_add_up(events: list[dict[str, Any]]) -> None:
    progress, _, clock = replay(events)
    progress.summary(2)
    assert [play["name"] for play in progress.plays] == ["Costs", "Faults"]
    whole = clock.now - progress.began
    assert 0 < progress.plays[1]["seconds"] < progress.plays[0]["seconds"] < whole
    assert sum(play["seconds"] for play in progress.plays) <= whole + 0.01


def test_heartbeat_names_the_task_and_the_hosts_still_in_it(events: list[dict[str, Any]]) -> None:
    progress, out, clock = replay(events, until="Items")
    before = out.getvalue()
    clock.now += HEARTBEAT_S - 0.1
    progress.tick()
    assert out.getvalue() == before
    clock.now += 0.2
    progress.tick()
    progress.tick()
    beat = out.getvalue()[len(before) :].splitlines()
    assert len(beat) == 1 and "Items: 10 s so far, still in it: two" in beat[0]


def test_no_heartbeat_between_tasks(events: list[dict[str, Any]]) -> None:
    progress, out, clock = replay(events)
    before = out.getvalue()
    clock.now += 100
    progress.tick()
    assert out.getvalue() == before


def test_a_run_that_never_began_shows_ansibles_words() -> None:
    progress = Progress(io.StringIO(), Clock())
    progress.event({"event": "verbose", "stdout": "\x1b[0;31m[ERROR]: no hosts file\x1b[0m"})
    assert progress.summary(1) == ["[ERROR]: no hosts file", "FAILED (rc 1) in 0.0 s"]


def test_secrets_of_no_log_tasks_are_not_shown(events: list[dict[str, Any]]) -> None:
    assert any("swordfish" in str(event) for event in events), (
        "the recording must hold the secret, or this proves nothing"
    )
    progress, out, _ = replay(events)
    assert "swordfish" not in out.getvalue() + "\n".join(progress.summary(2))


@pytest.mark.parametrize(("rc", "word"), [(0, "ok in"), (2, "FAILED (rc 2)"), (130, "INTERRUPTED in")])
def test_verdict(rc: int, word: str) -> None:
    assert Progress(io.StringIO(), Clock()).summary(rc)[-1].startswith(word)
