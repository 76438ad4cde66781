"""Files, modes, diffs, releases, rollback and removal on a temporary root."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils import rank

A, B, C = "r-aaaaaaaaaaaa", "r-bbbbbbbbbbbb", "r-cccccccccccc"


def test_install_writes_everything_once(world: Any) -> None:
    node = world.install(secrets={"VLLM_API_KEY": "k1"})
    assert node.changed and world.calls() == ["systemctl daemon-reload"]
    modes = {
        path: world.file(path).stat().st_mode & 0o777
        for path in (
            "/etc/sparkmesh/rank.json",
            "/etc/sparkmesh/rank.env",
            "/usr/local/lib/sparkmesh/guard.py",
            "/etc/systemd/system/sparkmesh-rank.service",
            "/etc/systemd/system/sparkmesh-guard.service",
        )
    }
    assert list(modes.values()) == [0o640, 0o600, 0o644, 0o644, 0o644]
    assert json.loads(world.file("/etc/sparkmesh/rank.json").read_text()) == world.spec()
    assert json.loads(world.file(f"/var/lib/sparkmesh/releases/{A}/rank.json").read_text()) == world.spec()
    assert world.file("/etc/sparkmesh/rank.env").read_text() == "VLLM_API_KEY=k1\n"
    assert world.history() == [("installed", A)]
    again = world.install(secrets={"VLLM_API_KEY": "k1"})
    assert not again.changed and not again.diff and world.calls() == []
    assert world.history() == [("installed", A)]


def test_only_a_changed_unit_reloads_systemd(world: Any) -> None:
    world.install()
    world.calls()
    assert world.install(guard="print('new guard')\n").changed and world.calls() == []
    assert world.install(args=("--gpus=all",), guard="print('new guard')\n").changed
    assert world.calls() == ["systemctl daemon-reload"]


def test_a_wrong_mode_is_repaired(world: Any) -> None:
    world.install()
    world.file("/etc/sparkmesh/rank.env").chmod(0o644)
    node = world.install()
    assert node.actions == ["set mode 0600 on /etc/sparkmesh/rank.env"]
    assert world.file("/etc/sparkmesh/rank.env").stat().st_mode & 0o777 == 0o600


def test_check_mode_on_a_fresh_node_says_all_and_does_nothing(world: Any) -> None:
    node = world.install(check=True, secrets={"VLLM_API_KEY": "k1"})
    assert world.tree() == {} and world.calls() == []
    assert "write /etc/sparkmesh/rank.json" in node.actions and f"record installed {A}" in node.actions
    assert "reload systemd" in node.actions
    rank.remove(world.node(check=True))
    assert rank.observe(world.node(check=True))["installed"] is False


def test_a_secret_is_in_no_diff_and_no_action(world: Any) -> None:
    world.install(secrets={"VLLM_API_KEY": "old-secret", "OTHER": "same-secret"})
    node = world.install(secrets={"VLLM_API_KEY": "new-secret", "OTHER": "same-secret"})
    (diff,) = node.diff
    assert diff["before"] == "OTHER=********\nVLLM_API_KEY=********\n"
    assert diff["after"] == "OTHER=********\nVLLM_API_KEY=******** (changed)\n"
    assert "secret" not in json.dumps([node.diff, node.actions])
    gone = world.node()
    rank.remove(gone)
    assert "secret" not in json.dumps(gone.diff) and not world.file("/etc/sparkmesh/rank.env").exists()


@pytest.mark.parametrize("secrets", [{"K": "a\nB=c"}, {"no name": "x"}, {"K": 1}])
def test_a_secret_that_cannot_be_written_is_refused(world: Any, secrets: dict[str, Any]) -> None:
    with pytest.raises(rank.RankError, match="environment file cannot hold"):
        world.install(secrets=secrets)


def test_roll_back_restores_spec_and_unit(world: Any) -> None:
    world.install()
    before = world.tree()
    world.install(spec=world.spec(release=B), args=("--gpus=all",))
    world.calls()
    assert rank.roll_back(world.node(), None)["release"] == A
    after = world.tree()
    for path in ("etc/sparkmesh/rank.json", "etc/systemd/system/sparkmesh-rank.service"):
        assert after[path] == before[path]
    assert world.calls() == ["systemctl daemon-reload"]
    assert world.history() == [("installed", A), ("installed", B), ("rolled_back", A)]


def test_roll_back_walks_back_and_never_to_what_was_left(world: Any) -> None:
    for release in (A, B, C):
        world.install(spec=world.spec(release=release))
    assert [rank.roll_back(world.node(), None)["release"] for _ in range(2)] == [B, A]
    with pytest.raises(rank.RankError, match=rf"seen 1 release\(s\) \({A}\)"):
        rank.roll_back(world.node(), None)
    world.install(spec=world.spec(release=C))
    assert rank.roll_back(world.node(), None)["release"] == A


def test_roll_back_from_a_named_release_happens_once(world: Any) -> None:
    for release in (A, B, C):
        world.install(spec=world.spec(release=release))
    assert rank.roll_back(world.node(), C)["release"] == B
    again = world.node()
    assert rank.roll_back(again, C)["release"] == B and not again.changed


def test_roll_back_needs_something_to_go_back_to(world: Any) -> None:
    with pytest.raises(rank.RankError, match=r"seen 0 release\(s\) \(none\)"):
        rank.roll_back(world.node(), None)
    world.install()
    world.install(spec=world.spec(release=B))
    world.file(f"/var/lib/sparkmesh/releases/{A}/rank.json").unlink()
    with pytest.raises(rank.RankError, match=f"releases/{A}: rank.json .* is gone"):
        rank.roll_back(world.node(), None)


def test_a_torn_record_does_not_swallow_the_next(world: Any) -> None:
    world.install()
    with world.file("/var/lib/sparkmesh/releases.jsonl").open("a") as log:
        log.write('{"event": "inst')
    world.install(spec=world.spec(release=B))
    assert world.history() == [("installed", A), ("installed", B)]


def test_remove_keeps_history_and_is_idempotent(world: Any) -> None:
    world.install()
    evidence = world.file("/var/lib/sparkmesh/evidence/guard-1.json")
    evidence.parent.mkdir()
    evidence.write_text("{}")
    world.calls()
    node = world.node()
    rank.remove(node)
    assert world.calls() == [
        "systemctl daemon-reload",
        "systemctl reset-failed sparkmesh-rank.service sparkmesh-guard.service",
    ]
    assert sorted(world.tree()) == [
        "var/lib/sparkmesh/evidence/guard-1.json",
        "var/lib/sparkmesh/releases.jsonl",
        f"var/lib/sparkmesh/releases/{A}/rank.json",
        f"var/lib/sparkmesh/releases/{A}/sparkmesh-rank.service",
    ]
    again = world.node()
    rank.remove(again)
    assert not again.changed and world.calls() == []


def test_observe_reads_only(world: Any) -> None:
    world.install()
    before = world.tree()
    world.calls()
    seen = rank.observe(world.node())
    assert seen["release"] == A and seen["running_release"] is None and not seen["restart_needed"] and not seen["ready"]
    assert seen["units"] == {"sparkmesh-rank.service": "inactive", "sparkmesh-guard.service": "inactive"}
    assert world.tree() == before and world.calls() == []


def test_observe_without_systemd_or_docker_claims_nothing(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(world.state))
    seen = rank.observe(world.node())
    assert seen["units"] == {"sparkmesh-rank.service": None, "sparkmesh-guard.service": None}
    assert seen["running_release"] is None and seen["installed"] is False


@pytest.mark.parametrize(("path", "value"), [("image", {}), ("rank", "1"), ("rank", True), ("head", None)])
def test_a_spec_that_cannot_be_used_is_named(world: Any, path: str, value: object) -> None:
    assert any(f"spec.{path}" in problem for problem in rank.check_spec(world.spec(**{path: value})))
    assert rank.check_spec(world.spec()) == []


def test_a_broken_installed_spec_is_named(world: Any) -> None:
    world.install()
    world.file("/etc/sparkmesh/rank.json").write_text("[]")
    with pytest.raises(rank.RankError, match=r"/etc/sparkmesh/rank\.json: .*fix: install the rank again"):
        rank.observe(world.node())
