"""The spark command: what it understands, what it refuses, and real runs on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from spark_cli.__main__ import REFUSED, USAGE, main
from spark_cli.verbs import VERBS, UsageError, find_inventory, find_verb, parse, typed_variable

REPO = Path(__file__).resolve().parents[3]
Spark = Callable[..., subprocess.Popen[str]]


@pytest.mark.parametrize(("typo", "verb"), [("docter", "doctor"), ("fabrik", "fabric"), ("statsu", "status")])
def test_a_typo_gets_the_verb_meant(typo: str, verb: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean .*{verb}"):
        find_verb(typo)


def test_a_word_that_is_near_nothing_gets_the_list() -> None:
    with pytest.raises(UsageError, match=r"the verbs are: lab .*doctor"):
        find_verb("xyzzy")


@pytest.mark.parametrize(
    ("item", "sent"),
    [
        ("fabric_mtu=9000", {"fabric_mtu": 9000}),
        ("reboot_allowed=true", {"reboot_allowed": True}),
        ('names=["a", "b"]', {"names": ["a", "b"]}),
        ("model_revision=12e5", {"model_revision": "12e5"}),
        ("pin=0123", {"pin": "0123"}),
        ("text=a=b c", {"text": "a=b c"}),
    ],
)
def test_variables_keep_their_type(item: str, sent: dict[str, object]) -> None:
    assert json.loads(typed_variable(item)) == sent


def test_variable_files_and_objects_pass_as_they_are() -> None:
    assert typed_variable("@site.yml") == "@site.yml"
    assert typed_variable('{"a": 1}') == '{"a": 1}'
    with pytest.raises(UsageError, match="looks like JSON"):
        typed_variable("a=[1,")


def test_a_missing_inventory_names_those_there(site: Path) -> None:
    with pytest.raises(UsageError, match=r"inventory 'rnig' does not exist.*are: lab"):
        find_inventory("rnig", site)
    assert find_inventory("lab", site) == (site / "inventories/lab").resolve()
    assert find_inventory(str(site / "inventories/lab/hosts"), site).name == "hosts"


def test_options_reach_ansible(site: Path) -> None:
    request = parse(["doctor", "--check", "--diff", "--limit", "one two", "--tags", "fabric", "-e", "a=1"], site)
    assert request.cmdline == "--check --diff --limit 'one two' --tags fabric -e '{\"a\": 1}'"


@pytest.mark.parametrize("name", [verb.name for verb in VERBS.values() if verb.warning])
def test_disruptive_verbs_need_consent(name: str, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    playbook = site / str(VERBS[name].playbook)
    playbook.write_text("[]\n")
    try:
        # Not a terminal here, so nobody could have said yes.
        assert main([name], site) == REFUSED
    finally:
        playbook.unlink()
    assert "--yes" in capsys.readouterr().err


def test_a_missing_playbook_is_named(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"], site) == USAGE
    error = capsys.readouterr().err
    assert "playbooks/bench.yml does not exist" in error and "quick" in error


@pytest.fixture
def spark(site: Path, environment: dict[str, str]) -> Spark:
    """Starts the command on the small site with another playbook behind the verb ``status``."""

    def start(playbook: str, *arguments: str) -> subprocess.Popen[str]:
        link = site / "playbooks/status.yml"
        link.unlink(missing_ok=True)
        link.symlink_to(site / "playbooks" / playbook)
        code = (
            "import sys; from pathlib import Path; from spark_cli.__main__ import main; "
            f"sys.exit(main(sys.argv[1:], Path({str(site)!r})))"
        )
        return subprocess.Popen(
            [sys.executable, "-c", code, "status", *arguments],
            env={**environment, "PYTHONPATH": f"{REPO / 'scripts'}:{REPO / 'collections'}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def test_json_summary_of_a_good_run(spark: Spark, site: Path) -> None:
    run = spark("quick.yml", "--json", "-e", "wanted_mtu=9000", "-v")
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    summary = json.loads(out)
    assert summary["ok"] and summary["rc"] == 0 and summary["failures"] == []
    assert [play["name"] for play in summary["plays"]] == ["Quick"]
    assert set(summary["hosts"]) == {"one", "two"}
    assert Path(summary["report"]).is_file()
    assert (
        '"msg": "int"' in (Path(summary["artifacts"]) / "stdout").read_text()
        or "msg: int" in (Path(summary["artifacts"]) / "stdout").read_text()
    )
    assert "ok in " in err
    assert (site / ".spark").stat().st_mode & 0o077 == 0


def test_status_of_a_failed_run_is_ansibles(spark: Spark) -> None:
    run = spark("quick.yml", "--limit", "nobody")
    out, err = run.communicate(timeout=120)
    assert run.returncode == 1, out + err
    assert "limit" in out and "FAILED (rc 1)" in out


def test_ctrl_c_ends_the_run_and_says_that_a_rerun_is_safe(spark: Spark, site: Path) -> None:
    run = spark("sleeper.yml")
    assert run.stdout
    first = run.stdout.readline()
    assert "Long" in first
    time.sleep(1)
    os.kill(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, out + err
    assert "INTERRUPTED" in out and "again is safe" in out
    # Ansible's own last words: it was asked to stop, not killed.
    assert "User interrupted" in out
    assert not (site / "inventories/lab/never").exists()
