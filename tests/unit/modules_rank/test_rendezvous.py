"""What a closed rendezvous means, on real sockets of this machine."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils import rank, rank_ready


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def spec_for(port: int) -> dict[str, Any]:
    return {"head": {"address": "127.0.0.1", "master_port": port}}


@pytest.fixture
def listener() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def closed_port() -> Any:
    """A port that refuses: bound, so that nobody else gets it, and not listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield port_of(held)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.2 s until a rendezvous that never opened is lost, 0.05 s for one that closed again."""
    monkeypatch.setattr(rank_ready, "RENDEZVOUS_OPENS_S", 0.2)
    monkeypatch.setattr(rank_ready, "RENDEZVOUS_CLOSED_S", 0.05)


def test_one_not_open_yet_is_waited_for_and_then_lost(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rendezvous = rank_ready.Rendezvous(spec_for(closed_port))
    # With the real limits, minutes are left; the shorter limit of one that was open must not count here.
    monkeypatch.setattr(rank_ready, "RENDEZVOUS_CLOSED_S", 0.0)
    assert rendezvous.lost() == ""
    monkeypatch.setattr(rank_ready, "RENDEZVOUS_OPENS_S", 0.05)
    time.sleep(0.1)
    said = rendezvous.lost()
    assert said.startswith(f"rank 0's rendezvous at 127.0.0.1:{closed_port} is never open in ")
    assert said.endswith("wanted open; fix: see rank 0")


def test_an_open_one_is_never_lost(listener: socket.socket, limits: None) -> None:
    rendezvous = rank_ready.Rendezvous(spec_for(port_of(listener)))
    time.sleep(0.3)
    assert rendezvous.lost() == "" and rendezvous.opened


def test_one_that_closed_again_is_lost_by_the_shorter_limit(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendezvous = rank_ready.Rendezvous(spec_for(port_of(listener)))
    assert rendezvous.lost() == ""
    listener.close()
    # A moment is no loss: rank 0 may be restarting its server.
    assert rendezvous.lost() == ""
    monkeypatch.setattr(rank_ready, "RENDEZVOUS_CLOSED_S", 0.05)
    time.sleep(0.1)
    assert "after it was open" in rendezvous.lost()


def test_opening_again_starts_the_clock_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_ready, "RENDEZVOUS_CLOSED_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = port_of(first)
        rendezvous = rank_ready.Rendezvous(spec_for(port))
        assert rendezvous.lost() == ""
    time.sleep(0.6)
    assert "after it was open" in rendezvous.lost()
    with socket.create_server(("127.0.0.1", port)):
        assert rendezvous.lost() == ""
    assert rendezvous.lost() == ""


@pytest.mark.parametrize(("number", "said"), [(1, "rendezvous at 127.0.0.1:.* never open"), (0, "no token")])
def test_only_a_worker_gives_up_on_the_rendezvous(
    world: Any, closed_port: int, limits: None, number: int, said: str
) -> None:
    spec = world.spec(
        rank=number,
        head={"address": "127.0.0.1", "master_port": closed_port},
        api={"host": "127.0.0.1", "port": closed_port},
    )
    world.install(spec=spec)
    begun = time.monotonic()
    with pytest.raises(rank.RankError, match=said) as caught:
        rank_ready.ensure(world.node(), spec, False, timeout=3.0 if number else 0.6, poll=0.05)
    assert number == 0 or time.monotonic() - begun < 2.5, "a lost rank 0 must not cost the whole start timeout"
    assert caught.value.facts["phase"] == "starting"
