"""The inventory against the argument specs of roles and plays, without any of Ansible's conversions.

Ansible turns the text "9000" into a number where a role asks for one, and takes a misspelt name as a variable nobody
reads. Both are refused here, before anything is changed. Runs on the controller only: it needs PyYAML.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.sparkmesh.cluster.plugins.module_utils.refusal import Refusal

# Areas of the operator's variables; a name that starts with one of them must be declared by a role or a play.
PREFIXES = (
    "cluster_", "host_", "kernel_", "memory_saver_", "fabric_", "image_", "model_", "runtime_", "release_", "verify_",
    "bench_", "monitoring_", "reboot_", "recable_", "preflight_", "lab_", "node_",
)  # fmt: skip

_CONSENT = re.compile(r"_allow_\w+$|_allowed$|_approve$")

# Ansible's type → what the value must be, and its name in a sentence.
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "text"),
    "path": ((str,), "text (a path)"),
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "list": ((list,), "a list"),
    "dict": ((dict,), "a mapping"),
}


class InventorySpecError(Refusal):
    """The argument specs cannot be read or contradict each other."""


def inventory_findings(variables: Mapping[str, Any], specs: Mapping[str, Mapping[str, Any]], node: str) -> list[str]:
    """What is wrong with ``variables`` of ``node`` under ``specs``; each sentence starts with the node.

    ``specs`` maps a variable to ``{type, choices, required, elements, options}`` as in an argument spec.
    """
    return say_once({node: findings(variables, specs)})


def findings(variables: Mapping[str, Any], specs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The same without the node."""
    return list(_findings(variables, specs))


def say_once(found: Mapping[str, list[str]]) -> list[str]:
    """Node → sentences as one list; what is true of several nodes is said once, with their names in front."""
    where: dict[str, list[str]] = {}
    for node, texts in found.items():
        for text in texts:
            where.setdefault(text, []).append(node)
    everyone = len(found) if len(found) > 1 else None
    return [f"{'all nodes' if len(names) == everyone else ', '.join(names)}: {text}" for text, names in where.items()]


def checked_names(names: Any, specs: Mapping[str, Any]) -> list[str]:
    """Those of ``names`` that ``inventory_findings`` looks at."""
    return sorted(name for name in names if name in specs or name.startswith(PREFIXES))


def load_specs(roles_dir: str) -> dict[str, dict[str, Any]]:
    """All ``roles/*/meta/argument_specs.yml`` and, beside the roles, ``playbooks/*.meta.yml`` as one spec.

    A variable is required if a play or the main entry point of some role requires it; what other entry points require
    is given where they are called. Raises ``InventorySpecError`` if no role has a spec, one cannot be read, or two
    disagree about a variable.
    """
    merged: dict[str, dict[str, Any]] = {}
    owners: dict[str, str] = {}
    problems: list[str] = []
    roles = sorted(Path(roles_dir).glob("*/meta/argument_specs.yml"))
    if not roles:
        problems.append(f"{roles_dir} holds no role with meta/argument_specs.yml: pass the roles directory")
    files = {path: f"role {path.parent.parent.name}" for path in roles}
    plays = sorted((Path(roles_dir).parent / "playbooks").glob("*.meta.yml"))
    files |= {path: f"playbook {path.name.removesuffix('.meta.yml')}" for path in plays}
    for path, owner in files.items():
        try:
            entries = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
            declared = [
                (entry, name, dict(spec))
                for entry, body in entries.items()
                for name, spec in ((body or {}).get("options") or {}).items()
            ]
        except (OSError, ValueError, yaml.YAMLError, LookupError, TypeError, AttributeError) as error:
            problems.append(f"{owner}: {path.name} cannot be read as argument specs: {error}")
            continue
        for entry, name, spec in declared:
            required = bool(spec.get("required")) and (entry == "main" or path in plays)
            known = merged.setdefault(name, {**spec, "required": False})
            known["required"] = known["required"] or required
            problems += _disagreements(name, known, spec, owners.setdefault(name, owner), owner)
    if problems:
        raise InventorySpecError(problems)
    return merged


def _disagreements(
    name: str, known: Mapping[str, Any], spec: Mapping[str, Any], first: str, second: str
) -> Iterator[str]:
    for key, default in (("type", "str"), ("elements", None), ("choices", None), ("options", None)):
        one, other = known.get(key, default), spec.get(key, default)
        if one != other:
            yield f"{name}: {first} declares {key} {one!r}, {second} {other!r}: make them the same"


def _findings(variables: Mapping[str, Any], specs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name in checked_names(variables, specs):
        if name not in specs:
            close = difflib.get_close_matches(name, list(specs), n=1)
            hint = f"did you mean {close[0]}?" if close else "nothing reads it; remove it"
            yield f"{name} is unknown: {hint}"
    yield from _required(variables, specs, "")
    for name in checked_names(variables, specs):
        if name in specs and variables[name] is not None and not _is_consent(name, variables[name]):
            yield from _value(name, variables[name], specs[name])


def _is_consent(name: str, value: Any) -> bool:
    """Whether this is a consent given as text: a survey of AWX sends nothing else, and its readers convert it."""
    return bool(_CONSENT.search(name)) and value in ("true", "false")


def _required(values: Mapping[str, Any], specs: Mapping[str, Mapping[str, Any]], where: str) -> Iterator[str]:
    for name, spec in specs.items():
        if spec.get("required") and values.get(name) is None:
            kind = _KINDS.get(spec.get("type", "str"), ((), "a value"))[1]
            yield f"{where}{name} is missing, wanted {kind}: set it in the inventory"


def _value(where: str, value: Any, spec: Mapping[str, Any]) -> Iterator[str]:
    kind = spec.get("type", "str")
    if kind in _KINDS:
        types, wanted = _KINDS[kind]
        # type() instead of isinstance: true is no number.
        if type(value) not in types:
            yield f"{where} is {_say(value)}, wanted {wanted}{_fix(where, value, kind)}"
            return
    choices = spec.get("choices")
    if choices and any(item not in choices for item in (value if kind == "list" else [value])):
        yield f"{where} is {_say(value)}, wanted one of {', '.join(map(str, choices))}"
    if kind == "list" and spec.get("elements"):
        element = {"type": spec["elements"], "options": spec.get("options")}
        for place, item in enumerate(value):
            yield from _value(f"{where}[{place}]", item, element)
    elif kind == "dict" and spec.get("options"):
        options = spec["options"]
        for name in value:
            if name not in options:
                close = difflib.get_close_matches(name, list(options), n=1)
                yield f"{where}.{name} is unknown: " + (f"did you mean {close[0]}?" if close else "remove it")
        yield from _required(value, options, f"{where}.")
        for name, option in options.items():
            if value.get(name) is not None:
                yield from _value(f"{where}.{name}", value[name], option)


def _say(value: Any) -> str:
    return f'the text "{value}"' if isinstance(value, str) else f"{value!r} ({_name_of(value)})"


def _name_of(value: Any) -> str:
    return next((name for types, name in _KINDS.values() if type(value) is types[-1]), type(value).__name__)


def _fix(where: str, value: Any, kind: str) -> str:
    """How to write the same thing rightly, where the meaning is plain."""
    if isinstance(value, str) and kind in ("int", "float") and _is_number(value, kind):
        return f": remove the quotes ({where}: {value.strip()})"
    if isinstance(value, str) and kind == "bool" and value.lower() in ("true", "yes", "on", "false", "no", "off"):
        return f": write {where}: {'true' if value.lower() in ('true', 'yes', 'on') else 'false'}"
    if kind in ("str", "path") and type(value) in (int, float, bool):
        return f': quote it ({where}: "{str(value).lower()}")'
    if kind == "list" and isinstance(value, str):
        return f": write {where}: [{value}]"
    return ""


def _is_number(text: str, kind: str) -> bool:
    try:
        return bool(text) and (int(text) if kind == "int" else float(text)) is not None
    except ValueError:
        return False
