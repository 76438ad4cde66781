"""From fresh nodes to an answered question, in the order in which a newcomer meets it."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from .conftest import REPO, Done, Lab

pytestmark = pytest.mark.lab
NODES = (1, 2, 3)


def recap(done: Done) -> dict[str, dict[str, int]]:
    """Ansible's closing table: host -> counter -> number."""
    found = re.findall(r"^(spark-\d)\s+: (ok=.*)$", done.text, re.M)
    return {host: {key: int(n) for key, n in re.findall(r"(\w+)=(\d+)", counts)} for host, counts in found}


def test_check_mode_on_fresh_nodes_changes_nothing(lab: Lab) -> None:
    wrote = "find /etc/netplan /etc/sparkmesh /var/lib/sparkmesh 2>/dev/null | sort; docker image ls --quiet"
    before = [lab.on(node, wrote) for node in NODES]
    assert all("60-sparkmesh" not in text for text in before), f"these nodes are not fresh: {before}"
    done = lab.play("site.yml", "--check", "--diff")
    assert done.rc == 0, done.tail()
    assert "+++ after: /etc/netplan/60-sparkmesh-fabric.yaml" in done.text
    assert [lab.on(node, wrote) for node in NODES] == before


def test_lab_answers_a_question(lab: Lab) -> None:
    done = lab.run("scripts/spark", "lab", seconds=1500)
    assert done.rc == 0, done.tail()
    tokens = re.search(r"answer tokens?: (\d+)|answer_tokens: (\d+)", done.text)
    assert tokens, done.tail()
    assert int(tokens[1] or tokens[2]) > 0
    report = re.search(r"report: (\S+)", done.text)
    assert report and Path(report[1]).exists()
    plays = json.loads(Path(report[1]).with_suffix(".json").read_text())["plays"]
    assert [play["name"] for play in plays] == ["Preflight", "Host", "Fabric", "Image", "Model", "Deploy", "Verify"]


def test_all_ranks_serve_one_release(lab: Lab) -> None:
    specs = [json.loads(lab.on(node, "cat /etc/sparkmesh/rank.json")) for node in NODES]
    assert [spec["rank"] for spec in specs] == [0, 1, 2]
    assert len({spec["group_hash"] for spec in specs}) == 1
    digests = {lab.on(node, 'docker inspect -f "{{.Config.Image}}" sparkmesh-rank') for node in NODES}
    assert len(digests) == 1
    assert "@sha256:" in digests.pop()


def test_second_run_changes_and_restarts_nothing_within_the_budget(lab: Lab) -> None:
    started = [lab.on(node, 'docker inspect -f "{{.State.StartedAt}}" sparkmesh-rank') for node in NODES]
    done = lab.run(
        sys.executable, "benchmarks/converge.py", "--runs", "1", "--max-rows", "60", "--max-trips", "25", "site.yml",
        PYTHONPATH=str(REPO / "collections"),
    )  # fmt: skip
    assert done.rc == 0, done.tail()
    assert [lab.on(node, 'docker inspect -f "{{.State.StartedAt}}" sparkmesh-rank') for node in NODES] == started


def test_check_mode_on_converged_nodes(lab: Lab) -> None:
    done = lab.play("site.yml", "--check", "--diff")
    assert done.rc == 0, done.tail()
    assert {host: counts["changed"] for host, counts in recap(done).items()} == dict.fromkeys(
        ("spark-1", "spark-2", "spark-3"), 0
    ), done.tail()


def test_doctor_names_a_pulled_cable(lab: Lab) -> None:
    healthy = lab.play("playbooks/doctor.yml")
    assert healthy.rc == 0, healthy.tail()
    try:
        assert lab.lab("cable", "cut", "spark-2:p0").rc == 0
        done = lab.play("playbooks/doctor.yml")
        assert done.rc != 0, done.tail()
        seen = re.findall(r"fail\s+(spark-\d)\s+fabric\.carrier:", done.text)
        assert set(seen) == {"spark-2", "spark-3"}, done.tail()
    finally:
        assert lab.lab("cable", "restore", "spark-2:p0").rc == 0


def _copy(tmp_path: Path, old: str, new: str, name: str) -> Path:
    """The lab's inventory with one change; the links to the common defaults stay links to them."""
    folder = tmp_path / "inventory"
    shutil.copytree(REPO / "inventories/lab", folder)
    path = folder / name
    text = path.read_text()
    assert old in text, f"{name} does not hold {old!r}"
    path.write_text(text.replace(old, new, 1))
    return folder


SITE = "group_vars/all/site.yml"


@pytest.mark.parametrize(
    ("name", "old", "new", "wanted"),
    [
        ("hosts.yml", "node_rank: 2", "node_rank: 1", "rank"),
        (
            SITE,
            "fabric_topology: triangle",
            'fabric_topology: triangle\nfabric_cables: ["spark-1:p0 spark-2:p1"]',
            "cable",
        ),
        (
            SITE,
            "fabric_topology: triangle",
            'fabric_topology: triangle\nfabric_mtu: "9000"',
            "mtu is '9000', wanted a whole number",
        ),
        (SITE, "fabric_topology: triangle", "fabric_topolgy: triangle", "fabric_topology"),
        (SITE, "reboot_allowed: true", 'reboot_allowed: true\nimage_registry_port: "5000"', "image_registry_port"),
    ],
)
def test_a_bad_inventory_is_refused_by_name(
    lab: Lab, tmp_path: Path, *, name: str, old: str, new: str, wanted: str
) -> None:
    done = lab.play("playbooks/preflight.yml", "-i", str(_copy(tmp_path, old, new, name)))
    assert done.rc != 0, done.tail()
    assert wanted in done.text, done.tail()
    assert "Observe every node" not in done.text, "it went on to the nodes: " + done.tail()
