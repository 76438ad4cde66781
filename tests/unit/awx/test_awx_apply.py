"""awx/apply.yml against an AWX in memory: it creates everything, and a second run changes nothing."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.fake_awx import FakeAwx

ROOT = Path(__file__).parents[3]
OBJECTS = yaml.safe_load((ROOT / "awx" / "objects.yml").read_text())["awx_objects"]
COLLECTION = ROOT / ".vendor" / "ansible_collections" / "awx" / "awx"


@dataclass
class Run:
    """What one ansible-playbook said."""

    code: int
    text: str

    @property
    def changed(self) -> int:
        """Tasks that changed something, from the recap."""
        found = re.search(r"^localhost .*\bchanged=(\d+)", self.text, re.MULTILINE)
        assert found, self.text
        return int(found.group(1))


def _apply(
    awx: FakeAwx,
    *arguments: str,
    password: str = "secret",
    credential: str = "spark login",
    inventory: str = "triangle",
    objects: dict[str, Any] | None = None,
) -> Run:
    assert COLLECTION.is_dir(), "the collection awx.awx is missing under .vendor: run scripts/setup"
    environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment |= {
        "CONTROLLER_HOST": awx.url,
        "CONTROLLER_USERNAME": "admin",
        "CONTROLLER_PASSWORD": password,
        # The repository's configuration would leave a report of this run in the checkout.
        "ANSIBLE_CONFIG": str(Path(__file__).with_name("bare.cfg")),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".vendor"),
    }
    values: dict[str, Any] = {"awx_scm_url": "git@git.example:sparkmesh.git", "awx_ee_image": "registry.example/ee:1"}
    values |= {"awx_credential": credential, "awx_inventory": inventory}
    if objects is not None:
        values["awx_objects"] = objects
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "awx/apply.yml", *arguments,
         "-e", yaml.safe_dump(values, default_flow_style=True, width=1000).strip()],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return Run(done.returncode, done.stdout + done.stderr)


@dataclass
class Applied:
    """An AWX after two runs, and the runs."""

    awx: FakeAwx
    first: Run
    writes_of_first: int
    second: Run


@pytest.fixture(scope="module")
def applied() -> Iterator[Applied]:
    with FakeAwx() as awx:
        awx.seed("credentials", name="spark login")
        first = _apply(awx)
        writes = len(awx.writes)
        yield Applied(awx, first, writes, _apply(awx))


def test_first_run_creates_and_second_changes_nothing(applied: Applied) -> None:
    assert applied.first.code == 0, applied.first.text
    assert applied.first.changed > 0
    assert applied.second.code == 0, applied.second.text
    assert applied.second.changed == 0, applied.second.text
    assert applied.awx.writes[applied.writes_of_first :] == []
    assert "WARNING" not in applied.first.text


def test_awx_holds_what_the_data_says(applied: Applied) -> None:
    awx = applied.awx
    templates = awx.named("job_templates")
    assert set(templates) == {template["name"] for template in OBJECTS["job_templates"]}
    inventory = awx.named("inventories")["triangle"]["id"]
    for wanted in OBJECTS["job_templates"]:
        got = templates[wanted["name"]]
        assert (got["playbook"], got["job_type"], got["inventory"]) == (
            wanted["playbook"],
            wanted["job_type"],
            inventory,
        )
        assert got["execution_environment"] == awx.named("execution_environments")["sparkmesh"]["id"]
        assert awx.links[got["id"], "credentials"] == [awx.named("credentials")["spark login"]["id"]]
        assert got["survey_enabled"] == bool(wanted["survey"])
        assert awx.surveys[got["id"]]["spec"] == wanted["survey"]
    sources = awx.named("inventory_sources")
    assert {name: source["source_path"] for name, source in sources.items()} == {
        item["name"]: item["source_path"] for item in OBJECTS["inventories"]
    }
    schedule = awx.named("schedules")["Doctor every hour"]
    assert schedule["unified_job_template"] == templates["Doctor"]["id"]


def test_recable_waits_for_a_person_before_it_applies(applied: Applied) -> None:
    awx = applied.awx
    nodes = awx.named("workflow_job_template_nodes")
    follows = {
        (name, kind): list(awx.links.get((node["id"], kind), []))
        for name, node in nodes.items()
        for kind in ("success_nodes", "failure_nodes", "always_nodes")
    }
    assert {edge: to for edge, to in follows.items() if to} == {
        ("plan", "failure_nodes"): [nodes["approve"]["id"]],
        ("approve", "success_nodes"): [nodes["apply"]["id"]],
        ("apply", "success_nodes"): [nodes["doctor"]["id"]],
    }
    approvals = awx.named("workflow_approval_templates")
    assert nodes["approve"]["unified_job_template"] == approvals["Approve the recabling plan"]["id"]
    templates = awx.named("job_templates")
    assert nodes["plan"]["unified_job_template"] == templates["Recable (plan)"]["id"]
    assert nodes["apply"]["unified_job_template"] == templates["Recable (apply)"]["id"]


def test_check_mode_writes_nothing_and_says_what_it_would_do() -> None:
    with FakeAwx() as awx:
        run = _apply(awx, "--check")
        assert run.code == 0, run.text
        assert awx.writes == []
        assert awx.named("organizations") == {}
        assert f"{len(OBJECTS['job_templates'])} job templates" in run.text


def test_wrong_password_is_refused() -> None:
    with FakeAwx() as awx:
        run = _apply(awx, password="wrong")
        assert run.code != 0
        assert "401" in run.text
        assert awx.writes == []


def test_unknown_inventory_is_refused_before_anything_is_written() -> None:
    with FakeAwx() as awx:
        run = _apply(awx, inventory="moon")
        assert run.code != 0
        assert "awx_inventory is moon, wanted one of triangle, triangle-4k, ring" in " ".join(run.text.split())
        assert awx.writes == []


def test_missing_credential_is_named() -> None:
    with FakeAwx() as awx:
        # One template shows it as well as all of them do, in a fifth of the time.
        few = {**OBJECTS, "inventories": OBJECTS["inventories"][:1], "job_templates": OBJECTS["job_templates"][:1]}
        run = _apply(awx, credential="nobody", objects=few)
        assert run.code != 0
        assert "/credentials/?name=nobody returned 0 items" in " ".join(run.text.split())
