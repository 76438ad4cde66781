"""awx/objects.yml names only what exists: playbooks, inventories, variables with their types."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
OBJECTS: dict[str, Any] = yaml.safe_load((ROOT / "awx" / "objects.yml").read_text())["awx_objects"]
TEMPLATES = {template["name"]: template for template in OBJECTS["job_templates"]}
QUESTIONS = [
    pytest.param(question, id=f"{name}: {question['variable']}")
    for name, template in TEMPLATES.items()
    for question in template["survey"]
]


def _options() -> dict[str, dict[str, Any]]:
    """Every declared variable with its specification, over all roles and playbooks."""
    files = [
        *ROOT.glob("roles/*/meta/argument_specs.yml"),
        *ROOT.glob("playbooks/*.meta.yml"),
        *ROOT.glob("*.meta.yml"),
    ]
    merged: dict[str, dict[str, Any]] = {}
    for path in files:
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            merged.update(entry.get("options", {}))
    return merged


def _declared(variable: str) -> dict[str, Any]:
    options = _options()
    assert variable in options, f"{variable} is in no argument spec of roles/ or playbooks/: declare it or drop it"
    return options[variable]


def test_templates_are_the_agreed_ones() -> None:
    assert set(TEMPLATES) == {
        "Doctor", "Converge (check)", "Converge", "Deploy", "Rollback", "Reboot", "Bench", "Recable (plan)",
        "Recable (apply)",
    }  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_playbook_exists(name: str) -> None:
    playbook = ROOT / TEMPLATES[name]["playbook"]
    assert playbook.is_file(), f"{name} runs {TEMPLATES[name]['playbook']}, which does not exist"


@pytest.mark.parametrize("question", QUESTIONS)
def test_survey_variable_is_declared_and_typed(question: dict[str, Any]) -> None:
    """A survey has no yes-or-no type, so a bool is asked as the texts false and true and the role reads it as bool."""
    declared = _declared(question["variable"])
    match declared.get("type", "str"):
        case "bool":
            assert question["type"] == "multiplechoice"
            assert question["choices"] == ["false", "true"]
            assert question["default"] == "false", "consent is never the default"
        case "int":
            assert question["type"] == "integer"
            assert question["min"] <= question["default"] <= question["max"]
        case "str" if "choices" in declared:
            assert question["type"] == "multiplechoice"
            assert set(question["choices"]) <= set(declared["choices"])
        case "str":
            assert question["type"] in ("text", "multiplechoice")
        case other:
            pytest.fail(f"{question['variable']} is a {other}, which a survey cannot ask for")


@pytest.mark.parametrize("name", TEMPLATES)
def test_fixed_variables_are_declared_and_typed(name: str) -> None:
    for variable, value in TEMPLATES[name]["extra_vars"].items():
        wanted = {"bool": bool, "int": int, "str": str}[_declared(variable).get("type", "str")]
        assert type(value) is wanted, f"{variable} is {value!r}, wanted a {wanted.__name__}"


def test_inventories_are_sites_with_profiles_of_their_own() -> None:
    profiles = []
    for inventory in OBJECTS["inventories"]:
        site = ROOT / inventory["source_path"]
        assert (site / "hosts.yml").is_file(), f"{inventory['name']}: {inventory['source_path']} has no hosts.yml"
        values = yaml.safe_load((site / "group_vars" / "all" / "site.yml").read_text())
        assert values["runtime_options"]["max_model_len"] > 0
        profiles.append(values["runtime_profile"])
    assert len(set(profiles)) == len(profiles), f"two sites share a profile name: {profiles}"


def test_only_the_approved_step_carries_the_consent() -> None:
    consenting = {name for name, template in TEMPLATES.items() if template["extra_vars"].get("recable_approve")}
    assert consenting == {"Recable (apply)"}
    nodes = OBJECTS["workflows"][0]["nodes"]
    steps = [node.get("job_template", "approval") for node in nodes]
    assert steps == ["Recable (plan)", "approval", "Recable (apply)", "Doctor"]
    # The step with the consent is reached from the approval alone, and the approval from a plan that stopped.
    leads = {(node["identifier"], node.get("on_success"), node.get("on_failure")) for node in nodes}
    assert leads == {
        ("plan", None, "approve"),
        ("approve", "apply", None),
        ("apply", "doctor", None),
        ("doctor", None, None),
    }


def test_references_inside_the_data_resolve() -> None:
    named = [s["job_template"] for s in OBJECTS["schedules"]]
    named += [n["job_template"] for w in OBJECTS["workflows"] for n in w["nodes"] if "job_template" in n]
    assert set(named) <= set(TEMPLATES)


def _conditions(node: object) -> Iterator[str]:
    """Every bare condition in a tree of tasks: the texts of when, that and their like."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("when", "that", "until", "failed_when", "changed_when"):
                yield from (str(text) for text in (value if isinstance(value, list) else [value]))
            else:
                yield from _conditions(value)
    elif isinstance(node, list):
        for item in node:
            yield from _conditions(item)


CONSENTS = sorted(
    {q["variable"] for t in TEMPLATES.values() for q in t["survey"] if q.get("choices") == ["false", "true"]}
)


@pytest.mark.parametrize("variable", CONSENTS)
def test_consent_asked_as_text_is_read_as_bool(variable: str) -> None:
    """A survey answers with the text "true", which is no condition for Ansible; "false" would even be a true one."""
    bare = re.compile(rf"\b{variable}\b(?!\s*\|\s*bool)")
    files = [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml"), *ROOT.glob("*.yml")]
    found = [
        f"{path.relative_to(ROOT)}: {condition}"
        for path in files
        for condition in _conditions(yaml.safe_load(path.read_text()))
        if bare.search(condition)
    ]
    assert not found, f"write {variable} | bool in: {found}"
