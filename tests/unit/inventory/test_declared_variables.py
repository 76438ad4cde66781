"""Variables are set once, declared wherever they are read, and described the same everywhere."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkmesh.cluster.plugins.module_utils.inventory_check import PREFIXES

ROOT = Path(__file__).parents[3]
ROLES = sorted(path.parents[1] for path in ROOT.glob("roles/*/meta/argument_specs.yml"))
PLAYBOOKS = [path for path in sorted(ROOT.glob("playbooks/*.yml")) if not path.name.endswith(".meta.yml")]
SET: dict[str, Any] = yaml.safe_load((ROOT / "inventories/common/group_vars/all.yml").read_text())
# Set in every site's hosts.yml, one for each node.
PER_NODE = {"node_rank"}


def declarations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(where, variable, specification) of every argument spec of roles and playbooks."""
    for path in [*ROOT.glob("roles/*/meta/argument_specs.yml"), *ROOT.glob("playbooks/*.meta.yml")]:
        for entry, body in yaml.safe_load(path.read_text())["argument_specs"].items():
            for name, spec in body.get("options", {}).items():
                yield f"{path.relative_to(ROOT)} {entry}", name, spec


def test_every_declared_variable_is_set_and_every_set_one_declared() -> None:
    assert {name for _, name, _ in declarations()} == set(SET) | PER_NODE


@pytest.mark.parametrize("hosts", sorted(ROOT.glob("inventories/*/hosts.yml")), ids=lambda path: path.parent.name)
def test_every_node_has_its_own_variables(hosts: Path) -> None:
    nodes = yaml.safe_load(hosts.read_text())["sparks"]["hosts"]
    assert {name: PER_NODE - set(variables) for name, variables in nodes.items()} == {name: set() for name in nodes}
    assert sorted(variables["node_rank"] for variables in nodes.values()) == list(range(len(nodes)))


@pytest.mark.parametrize("site", sorted(ROOT.glob("inventories/*/group_vars/all/site.yml")), ids=lambda p: p.parts[-4])
def test_a_site_overrides_only_what_is_set_in_common(site: Path) -> None:
    assert set(yaml.safe_load(site.read_text())) - set(SET) == set()
    assert (site.parent / "common.yml").resolve() == ROOT / "inventories/common/group_vars/all.yml"


def test_a_variable_is_described_the_same_everywhere() -> None:
    seen: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for where, name, spec in declarations():
        seen[name][repr(sorted(spec.items(), key=str))].append(where)
    assert {name: dict(kinds) for name, kinds in seen.items() if len(kinds) > 1} == {}


def test_every_name_starts_with_a_known_area_and_preflight_asks_for_all_of_them() -> None:
    assert [name for name in {*SET, *PER_NODE} if not name.startswith(PREFIXES)] == []
    areas = yaml.safe_load((ROOT / "roles/preflight/vars/main.yml").read_text())["__preflight_areas"]
    inside = re.fullmatch(r"\^\((.*)\)_", areas)
    assert inside and {f"{area}_" for area in inside.group(1).split("|")} == set(PREFIXES)


def read_by(*files: Path) -> set[str]:
    """The operator's variables whose names stand in these files outside comments."""
    words = {
        word
        for path in files
        for line in path.read_text().splitlines()
        for word in re.findall(r"(?<!sparkmesh\.cluster\.)\b\w+", line.partition("# ")[0])
    }
    return words & (set(SET) | PER_NODE)


@pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)
def test_a_role_reads_what_it_declares(role: Path) -> None:
    entries = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    declared = {name for body in entries.values() for name in body["options"]}
    assert set(entries) <= {path.stem for path in (role / "tasks").glob("*.yml")}
    code = [path for folder in ("tasks", "vars", "templates", "handlers") for path in (role / folder).rglob("*.*")]
    assert read_by(*code) - declared == set(), "declare what the role reads in meta/argument_specs.yml"


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda path: path.stem)
def test_a_play_declares_what_it_reads_itself(playbook: Path) -> None:
    meta = playbook.with_suffix(".meta.yml")
    read = read_by(playbook)
    validated = {play.get("validate_argspec") for play in yaml.safe_load(playbook.read_text())} - {None}
    if not read:
        assert not meta.exists() and not validated, f"{playbook.name} reads nothing that roles do not declare already"
        return
    specs = yaml.safe_load(meta.read_text())["argument_specs"]
    assert set(specs) == validated == {playbook.stem}
    assert set(specs[playbook.stem]["options"]) == read


@pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)
def test_the_readme_of_a_role_shows_its_spec(role: Path) -> None:
    entries = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    wanted = {
        entry: [(name, spec["type"], spec["description"]) for name, spec in body["options"].items()]
        for entry, body in entries.items()
    }
    shown: dict[str, list[tuple[str, ...]]] = {}
    rows: list[tuple[str, ...]] = []
    for line in (role / "README.md").read_text().splitlines():
        if heading := re.match(r"## `(\w+)`", line):
            rows = shown.setdefault(heading.group(1), [])
        elif row := re.fullmatch(r"\| `(\w+)` \| (\w+) \| (.*) \|", line):
            rows.append(row.groups())
    assert shown == wanted
