"""The report callback in a real run of ansible-playbook, and the counting rules one by one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils import run_report
from ansible_collections.sparkmesh.cluster.plugins.module_utils.run_report_html import render


@pytest.fixture(scope="module")
def folder(site: Path, environment: dict[str, str]) -> Path:
    """The report folder of one run of recorded.yml."""
    command = ["ansible-playbook", "playbooks/recorded.yml"]
    done = subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "No report of this run" not in done.stdout + done.stderr
    newest = run_report.newest_report(site / "reports")
    assert newest, done.stdout
    assert f"report: {newest.with_suffix('.html')}" in done.stdout
    return newest.parent


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "report.json").read_text()))


def tasks(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {task["name"]: task for play in report["plays"] for task in play["tasks"]}


def test_trips_are_module_executions(report: dict[str, Any]) -> None:
    trips = {name: task["trips"] for name, task in tasks(report).items()}
    assert trips == {
        "Change with words": {"one": 1, "two": 1},
        "Two of three items": {"one": 2, "two": 2},
        "Skipped everywhere": {},
        "On the controller": {},
        "Delegated": {"two": 1},
        "Twice before it works": {"one": 2},
        "Say a secret": {"one": 1, "two": 1},
        "Fail with a secret": {"one": 1, "two": 1},
        "Keep a secret": {},
        "Keep an answer": {},
        "First try": {"one": 1, "two": 1},
        "Second try": {},
        "Check": {"one": 1},
        "Items": {"two": 2},
    }
    assert report["trips"] == {"one": 9, "two": 9}


def test_rows_and_seconds(report: dict[str, Any]) -> None:
    assert [(play["name"], play["rows"]) for play in report["plays"]] == [("Costs", 10), ("Faults", 4)]
    assert report["rows"] == 14
    spent = sum(play["seconds"] for play in report["plays"])
    assert 0 < spent <= report["seconds"] + 0.01
    for play in report["plays"]:
        assert sum(task["seconds"] for task in play["tasks"]) <= play["seconds"] + 0.01


def test_failures_carry_the_fix_and_tell_rescued_from_failed(report: dict[str, Any]) -> None:
    assert report["ok"] is False
    found = {(f["host"], f["task"]): f for f in report["failures"]}
    assert found["one", "Check"]["fix"] == "set the MTU of enp1s0f0np0 to 9000"
    assert found["one", "Check"]["status"] == found["two", "Items"]["status"] == "failed"
    assert found["one", "First try"]["status"] == found["two", "First try"]["status"] == "rescued"
    assert tasks(report)["Fail with a secret"]["hosts"]["one"]["status"] == "ignored"


def test_words_of_a_change_are_kept(report: dict[str, Any]) -> None:
    assert tasks(report)["Change with words"]["hosts"]["two"]["actions"] == ["two: sysctl vm.swappiness 60 -> 1"]


def test_nothing_of_a_no_log_task_is_written(folder: Path, report: dict[str, Any]) -> None:
    for name in ("report.json", "report.html"):
        assert "swordfish" not in (folder / name).read_text()
    assert "password" not in report["custom"]["_run"]
    assert report["custom"]["_run"]["answer"] == "<b>yes</b>"


def test_the_page_is_well_formed_and_escaped(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert "&lt;b&gt;yes&lt;/b&gt;" in page and "<b>yes" not in page
    tree = ElementTree.fromstring(page)
    text = " ".join("".join(tree.itertext()).split())
    assert "Is 1 < 2 & 2 > 1?" in text and "set the MTU of enp1s0f0np0 to 9000" in text
    # Self-contained: nothing to fetch, nothing to execute.
    assert not [element for element in tree.iter() if element.tag.rpartition("}")[2] in ("script", "link", "img")]


def test_control_characters_do_not_break_the_page(report: dict[str, Any]) -> None:
    ElementTree.fromstring(render({**report, "custom": {"_run": {"answer": "a\x1b[0m\x00b"}}}))


def test_a_folder_that_cannot_be_written_is_a_warning(site: Path, environment: dict[str, str]) -> None:
    blocked = site / "blocked"
    blocked.write_text("a file where the folder should be")
    done = subprocess.run(
        ["ansible-playbook", "playbooks/quick.yml"],
        cwd=site,
        env={**environment, "SPARKMESH_REPORT_DIR": str(blocked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "No report of this run: " in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("action", "result", "status", "trips"),
    [
        ("ansible.builtin.command", {}, "ok", 1),
        ("ansible.builtin.command", {}, "skipped", 0),
        ("ansible.builtin.command", {"msg": "no route"}, "unreachable", 1),
        ("ansible.builtin.set_fact", {}, "ok", 0),
        ("debug", {}, "ok", 0),
        ("someone.else.debug", {}, "ok", 1),
        # A module's own list of results is no loop.
        ("sparkmesh.cluster.host_settings", {"results": [{"name": "a"}, {"name": "b"}]}, "ok", 1),
        (
            "command",
            {"results": [{"ansible_loop_var": "item"}, {"ansible_loop_var": "item", "skipped": True}]},
            "ok",
            1,
        ),
        ("command", {"results": []}, "ok", 1),
    ],
)
def test_trips_of(action: str, result: dict[str, Any], status: str, trips: int) -> None:
    assert run_report.trips_of(action, result, status) == trips


def test_failure_of_names_the_broken_entries_only() -> None:
    links = [{"ok": True, "fix": "nothing"}, {"ok": False, "fix": "seat the cable of p0"}]
    assert run_report.failure_of({"msg": "1 link", "links": links}) == {
        "message": "1 link",
        "fix": "seat the cable of p0",
    }
    assert "re-run is safe" in run_report.failure_of({}, "unreachable")["fix"]


def test_prune_keeps_the_newest_and_touches_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "20990101-notes").mkdir()
    for second in range(5):
        folder = run_report.new_folder(tmp_path, "site.yml", 1_700_000_000 + second)
        (folder / "report.json").write_text("{}")
    run_report.prune(tmp_path, 2)
    left = run_report.report_folders(tmp_path)
    assert len(left) == 2 and run_report.newest_report(tmp_path) == left[-1] / "report.json"
    assert (tmp_path / "20990101-notes").is_dir()


def test_two_runs_in_one_second_get_two_folders_in_order(tmp_path: Path) -> None:
    folders = [run_report.new_folder(tmp_path, "a.yml", 1_700_000_000) for _ in range(3)]
    for folder in folders:
        (folder / "report.json").write_text("{}")
    assert run_report.newest_report(tmp_path) == folders[-1] / "report.json"
