"""The filters as a real Ansible templar calls them: tagged values in, plain values or one clear error out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.plain import canonical_json, plain

ROOT = Path(__file__).parents[3]
PLAY = """
- hosts: sparks
  gather_facts: false
  tasks:
    - ansible.builtin.debug:
        msg: "RESULT {{ dict(groups['sparks'] | zip(groups['sparks'] | map('extract', hostvars, 'node_rank')))
          | sparkmesh.cluster.fabric_plan('pair', mtu=mtu, cables=(cables or none)) | to_json }} END"
      run_once: true
    - ansible.builtin.debug:
        msg: "{{ {'a': 0, 'b': 0} | sparkmesh.cluster.fabric_plan('triangle', mtu='9000') }}"
      run_once: true
      register: refused
      ignore_errors: true
    - ansible.builtin.debug:
        msg: "FOUND {{ hostvars | sparkmesh.cluster.inventory_findings(roles, nodes=groups['sparks']) | to_json }} END"
      run_once: true
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one run of a playbook printed."""
    folder = tmp_path_factory.mktemp("play")
    hosts: dict[str, Any] = {f"spark-{n + 1}": {"node_rank": n, "ansible_connection": "local"} for n in range(2)}
    values = {
        "mtu": "{{ 4000 + 5000 }}",
        "cables": [],
        "fabric_mtu": "9000",
        "fabric_pol": "x",
        "fabric_plan": "{{ nowhere }}",
        "unrelated": "{{ nowhere }}",
        "roles": str(folder / "roles"),
    }
    (folder / "inventory.json").write_text(json.dumps({"sparks": {"hosts": hosts, "vars": values}}), encoding="utf-8")
    (folder / "ansible.cfg").write_text("[defaults]\nnocows = true\n", encoding="utf-8")
    (folder / "play.yml").write_text(PLAY, encoding="utf-8")
    specs = folder / "roles/one/meta/argument_specs.yml"
    specs.parent.mkdir(parents=True)
    declared = (
        "fabric_mtu: {type: int}, fabric_pool: {}, fabric_plan: {type: dict, required: true}, node_rank: {type: int}"
    )
    specs.write_text(f"argument_specs: {{main: {{options: {{{declared}}}}}}}", encoding="utf-8")
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
    }
    argv = [sys.executable, "-m", "ansible", "playbook", "-i", str(folder / "inventory.json"), str(folder / "play.yml")]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def said(output: str, mark: str) -> Any:
    line = next(line for line in output.splitlines() if f'"{mark} ' in line)
    text = json.loads(line[line.index('"msg": ') + 7 :])
    return json.loads(text.removeprefix(f"{mark} ").removesuffix(" END"))


def test_templated_values_become_a_plan(output: str) -> None:
    plan = said(output, "RESULT")
    assert plan["mtu"] == 9000
    assert plan["nodes"]["spark-2"]["links"][0]["peer_address"] == "10.20.8.11"


def test_a_refusal_lists_every_problem_on_its_own_line(output: str) -> None:
    lines = [line.strip() for line in output.splitlines()]
    assert "rank 0 is claimed by a and b: give each its own node_rank" in lines
    assert "mtu is '9000', wanted a whole number from 1500 to 9000, without quotes" in lines
    assert any(line.startswith("a triangle has 3 nodes") for line in lines)
    assert "Traceback" not in output


def test_inventory_findings_over_hostvars(output: str) -> None:
    assert said(output, "FOUND") == [
        "all nodes: fabric_plan cannot be evaluated: 'nowhere' is undefined",
        "all nodes: fabric_pol is unknown: did you mean fabric_pool?",
        'all nodes: fabric_mtu is the text "9000", wanted a whole number: remove the quotes (fabric_mtu: 9000)',
    ]


class Tagged(str):
    """A text with something on it, as Ansible's are."""


def test_plain_gives_exact_types() -> None:
    copy = plain({Tagged("a"): [Tagged("b"), 1, 2.5, True, None, (1,)]})
    assert copy == {"a": ["b", 1, 2.5, True, None, [1]]}
    assert [type(item) for item in (next(iter(copy)), copy["a"][0], copy["a"][5])] == [str, str, list]


@pytest.mark.parametrize(
    ("value", "word"),
    [({"a": [{1: 2}]}, "a[0]"), ({"a": b"x"}, "value.a is a bytes"), (object(), "object"), ({1}, "set")],
)
def test_plain_names_what_json_cannot_say(value: Any, word: str) -> None:
    with pytest.raises(TypeError) as refused:
        plain(value)
    assert word in str(refused.value)


def test_canonical_json() -> None:
    assert canonical_json({"b": [1, True], "a": "ü"}) == '{"a":"ü","b":[1,true]}'
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json(float("nan"))
