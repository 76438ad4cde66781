"""The verbs of day two, on the group that the tests before have left: each does what it says, or refuses by name."""

import json
import re

import pytest

from .conftest import Done, Lab

pytestmark = pytest.mark.lab
NODES = (1, 2, 3)
# Another release of the same image and model: one option differs.
OTHER = '{"runtime_options": {"dtype": "bfloat16", "max_model_len": 256, "max_num_seqs": 4, "enforce_eager": true}}'


def phases(done: Done) -> list[str]:
    """The phase of every rank that status printed."""
    return re.findall(r"rank \d: (\w+), release", done.text)


def releases(lab: Lab) -> set[str]:
    """The installed release of every node."""
    return {json.loads(lab.on(node, "cat /etc/sparkmesh/rank.json"))["release"] for node in NODES}


def test_deploy_starts_what_the_reboot_stopped_and_status_says_so(lab: Lab) -> None:
    done = lab.play("playbooks/deploy.yml")
    assert done.rc == 0, done.tail()
    status = lab.play("playbooks/status.yml")
    assert status.rc == 0, status.tail()
    assert phases(status) == ["ready"] * 3, status.tail()


def test_deploy_heals_a_group_that_lost_a_rank(lab: Lab) -> None:
    lab.on(2, "systemctl stop sparkmesh-rank")
    # No consent is needed: a group without one of its ranks serves nobody.
    done = lab.play("playbooks/deploy.yml", "-e", '{"release_allow_restart": false}')
    assert done.rc == 0, done.tail()
    assert phases(lab.play("playbooks/status.yml")) == ["ready"] * 3


def test_another_release_wants_consent_and_comes_back_by_rollback(lab: Lab) -> None:
    before = releases(lab)
    assert len(before) == 1
    refused = lab.play("playbooks/deploy.yml", "-e", OTHER, "-e", '{"release_allow_restart": false}')
    assert refused.rc != 0, refused.tail()
    assert "release_allow_restart" in refused.text
    running = lab.on(1, 'docker inspect -f "{{.State.Running}}" sparkmesh-rank')
    assert running == "true", "a refused deploy must leave the old release serving"
    deployed = lab.play("playbooks/deploy.yml", "-e", OTHER)
    assert deployed.rc == 0, deployed.tail()
    assert releases(lab).isdisjoint(before)
    back = lab.play("playbooks/rollback.yml")
    assert back.rc == 0, back.tail()
    assert releases(lab) == before
    verified = lab.play("playbooks/verify.yml")
    assert verified.rc == 0, verified.tail()


def test_recable_refuses_without_approval_and_names_the_cable(lab: Lab) -> None:
    # p0 and p1 of spark-3 exchanged: two cables differ from the plan in force.
    cables = '{"fabric_cables": ["spark-1:p0 spark-2:p1", "spark-2:p0 spark-3:p0", "spark-3:p1 spark-1:p1"]}'
    done = lab.play("playbooks/recable.yml", "-e", cables)
    assert done.rc != 0, done.tail()
    assert "recable_approve is False" in done.text or "recable_approve is false" in done.text, done.tail()
    assert "spark-2:p0--spark-3:p0" in done.text
    assert lab.on(1, "systemctl is-active sparkmesh-rank") == "active"


def test_stop_and_reset_leave_no_service_and_no_fabric_address(lab: Lab) -> None:
    assert lab.play("playbooks/stop.yml").rc == 0
    status = lab.play("playbooks/status.yml")
    assert status.rc == 0, status.tail()
    assert "ready" not in phases(status), status.tail()
    reset = lab.play("playbooks/reset.yml")
    assert reset.rc == 0, reset.tail()
    for node in NODES:
        assert "10.20." not in lab.on(node, "ip -br -4 address")
        assert lab.on(node, "find /etc/systemd/system -name sparkmesh-rank.service") == ""
