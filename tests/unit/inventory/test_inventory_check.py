"""The inventory against argument specs: strict types, known names, nothing missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.inventory_check import (
    InventorySpecError,
    inventory_findings,
    load_specs,
    say_once,
)

SPECS: dict[str, dict[str, Any]] = {
    "fabric_mtu": {"type": "int", "required": True},
    "fabric_topology": {"type": "str", "choices": ["pair", "triangle", "ring"]},
    "fabric_cables": {"type": "list", "elements": "str"},
    "reboot_allowed": {"type": "bool"},
    "runtime_guard": {
        "type": "dict",
        "options": {"start_period_s": {"type": "float", "required": True}, "floor": {"type": "int"}},
    },
    "host_settings": {"type": "list", "elements": "dict", "options": {"name": {"required": True}}},
    "model_root": {"type": "path"},
    "image_extra": {"type": "raw"},
    "verify_question": {"type": "str"},
}
GOOD: dict[str, Any] = {
    "fabric_mtu": 9000,
    "fabric_topology": "ring",
    "fabric_cables": ["a:p0 b:p1"],
    "reboot_allowed": False,
    "runtime_guard": {"start_period_s": 2, "floor": 1},
    "host_settings": [{"name": "vm.swappiness"}],
    "model_root": "/models",
    "image_extra": 5,
    "verify_question": "why?",
    "ansible_host": "172.31.77.11",
    "my_own": {"anything": 1},
}


def test_a_good_inventory_has_no_finding() -> None:
    assert inventory_findings(GOOD, SPECS, "spark-1") == []
    assert inventory_findings({"fabric_mtu": 9000}, SPECS, "spark-1") == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fabric_mtu": "9000"}, ['fabric_mtu is the text "9000"', "remove the quotes (fabric_mtu: 9000)"]),
        ({"fabric_mtu": True}, ["fabric_mtu is True (true or false)", "a whole number"]),
        ({"fabric_mtu": 9000.0}, ["fabric_mtu is 9000.0"]),
        ({"fabric_mtu": None}, ["fabric_mtu is missing"]),
        ({"fabric_topology": "star"}, ["star", "pair, triangle, ring"]),
        ({"fabric_cables": "a:p0 b:p1"}, ["a list", "[a:p0 b:p1]"]),
        ({"fabric_cables": ["a", 5]}, ["fabric_cables[1] is 5"]),
        ({"reboot_allowed": "yes"}, ["write reboot_allowed: true"]),
        ({"reboot_allowed": "False"}, ["write reboot_allowed: false"]),
        ({"reboot_allowed": 0}, ["reboot_allowed is 0"]),
        ({"runtime_guard": {"start_period_s": "2"}}, ["runtime_guard.start_period_s is the text"]),
        ({"runtime_guard": {"floor": 1}}, ["runtime_guard.start_period_s is missing"]),
        ({"runtime_guard": {"start_period_s": 1, "flor": 1}}, ["runtime_guard.flor is unknown: did you mean floor?"]),
        ({"host_settings": [{"name": "x"}, {}]}, ["host_settings[1].name is missing"]),
        ({"host_settings": [{"name": 3}]}, ["host_settings[0].name is 3", "quote it"]),
        ({"model_root": 7}, ["model_root is 7"]),
        ({"fabric_mtuu": 9000}, ["fabric_mtuu is unknown: did you mean fabric_mtu?"]),
        ({"lab_zzzzzzzz": 1}, ["lab_zzzzzzzz is unknown: nothing reads it"]),
        ({"verify_question": 3}, ["verify_question is 3"]),
        ({"verify_qustion": "why?"}, ["verify_qustion is unknown: did you mean verify_question?"]),
        ({"recable_aprove": True}, ["recable_aprove is unknown"]),
        ({"release_allow_restrat": True}, ["release_allow_restrat is unknown"]),
    ],
)
def test_one_mistake_is_one_sentence(change: dict[str, Any], words: list[str]) -> None:
    found = inventory_findings({**GOOD, **change}, SPECS, "spark-1")
    assert len(found) == 1, found
    assert found[0].startswith("spark-1: ")
    assert [word for word in words if word not in found[0]] == []


def test_missing_required() -> None:
    found = inventory_findings({}, SPECS, "spark-2")
    assert found == ["spark-2: fabric_mtu is missing, wanted a whole number: set it in the inventory"]


def test_what_is_true_of_several_nodes_is_said_once() -> None:
    found = say_once({"a": ["x", "y"], "b": ["x"], "c": ["x", "y"]})
    assert found == ["all nodes: x", "a, c: y"]
    assert say_once({"a": ["x"]}) == ["a: x"]


def role(root: Path, name: str, text: str) -> None:
    path = root / name / "meta" / "argument_specs.yml"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")


def test_specs_of_all_roles_and_entry_points(tmp_path: Path) -> None:
    role(
        tmp_path,
        "one",
        "argument_specs:\n  main:\n    options:\n      fabric_mtu: {type: int}\n"
        "  stop:\n    options:\n      runtime_now: {type: bool, required: true}\n  bare:\n",
    )
    role(tmp_path, "two", "argument_specs:\n  main:\n    options:\n      fabric_mtu: {type: int, required: true}\n")
    specs = load_specs(str(tmp_path))
    assert specs["fabric_mtu"]["required"] is True
    assert specs["runtime_now"]["required"] is False
    assert inventory_findings({"fabric_mtu": 1, "runtime_now": 5}, specs, "n") == [
        "n: runtime_now is 5 (a whole number), wanted true or false"
    ]


def test_roles_that_disagree(tmp_path: Path) -> None:
    role(tmp_path, "one", "argument_specs: {main: {options: {fabric_mtu: {type: int}}}}")
    role(tmp_path, "two", "argument_specs: {main: {options: {fabric_mtu: {}}}}")
    with pytest.raises(InventorySpecError, match="fabric_mtu: role one declares type 'int', role two 'str': make them"):
        load_specs(str(tmp_path))


def play(root: Path, name: str, text: str) -> None:
    (root / "playbooks").mkdir(exist_ok=True)
    (root / "playbooks" / f"{name}.meta.yml").write_text(text, encoding="utf-8")


def test_plays_declare_too(tmp_path: Path) -> None:
    role(tmp_path / "roles", "one", "argument_specs: {main: {options: {fabric_mtu: {type: int}}}}")
    play(tmp_path, "verify", "argument_specs: {verify: {options: {verify_question: {required: true}}}}")
    specs = load_specs(str(tmp_path / "roles"))
    assert set(specs) == {"fabric_mtu", "verify_question"}
    assert inventory_findings({"verify_qestion": "x"}, specs, "n") == [
        "n: verify_qestion is unknown: did you mean verify_question?",
        "n: verify_question is missing, wanted text: set it in the inventory",
    ]
    play(tmp_path, "bench", "argument_specs: {bench: {options: {fabric_mtu: {type: str}}}}")
    play(tmp_path, "broken", "[")
    with pytest.raises(InventorySpecError) as refused:
        load_specs(str(tmp_path / "roles"))
    assert "fabric_mtu: role one declares type 'int', playbook bench 'str': make them the same" in str(refused.value)
    assert "playbook broken: broken.meta.yml cannot be read as argument specs" in str(refused.value)


@pytest.mark.parametrize(
    "text", ["argument_specs: [", "other: {}", "argument_specs: {main: {options: [a]}}", "- 1", ""]
)
def test_specs_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    role(tmp_path, "broken", text)
    with pytest.raises(InventorySpecError, match="role broken"):
        load_specs(str(tmp_path))


def test_no_roles_at_all(tmp_path: Path) -> None:
    with pytest.raises(InventorySpecError, match="no role"):
        load_specs(str(tmp_path))


def test_the_roles_of_this_repository_agree() -> None:
    specs = load_specs(str(Path(__file__).parents[3] / "roles"))
    assert specs["fabric_mtu"]["type"] == "int"
