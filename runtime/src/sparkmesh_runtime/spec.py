"""Load and validate a rank spec; every problem is listed, not only the first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

Spec = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a spec: where (`head.master_port`), what was seen and what was wanted."""

    path: str
    seen: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.path}: seen {self.seen}, wanted {self.wanted}"


class SpecError(Exception):
    """The spec cannot be used; `problems` lists every reason."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.problems = problems
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(
            f"{source}: {len(problems)} problem(s) in the rank spec\n{lines}\n"
            "  fix: correct the inventory and install the rank again; never edit this file by hand"
        )


def schema() -> dict[str, Any]:
    """The published JSON Schema (2020-12) of a rank spec."""
    text = resources.files(__package__).joinpath("rank_spec.schema.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def problems(document: object) -> list[Problem]:
    """Every problem of a parsed spec: first the schema's, then (if it has the right shape) the relations in it."""
    found = [_from_schema(error) for error in Draft202012Validator(schema()).iter_errors(document)]
    if not found and isinstance(document, dict):
        found = _relations(document)
    return sorted(found, key=lambda problem: problem.path)


def load(path: Path) -> Spec:
    """Read and validate the spec at `path`. Raises SpecError with every problem found."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(str(path), [Problem("(file)", error.strerror or str(error), "a readable file")]) from error
    except ValueError as error:
        raise SpecError(str(path), [Problem("(file)", str(error), "a JSON document")]) from error
    found = problems(document)
    if found:
        raise SpecError(str(path), found)
    spec: Spec = document
    return spec


def _from_schema(error: ValidationError) -> Problem:
    path = ".".join(str(part) for part in error.absolute_path) or "(top)"
    seen, wanted = _short(error.instance), f"{error.validator} {_short(error.validator_value)}"
    if error.validator in ("required", "additionalProperties"):
        seen, wanted = error.message, "exactly the keys of the schema"
    elif error.validator == "not":
        wanted = "another name: the launcher or rank.env sets this one"
    return Problem(path, seen, wanted)


def _relations(spec: Spec) -> list[Problem]:
    """What a schema cannot say: relations between values."""
    found = []
    if spec["rank"] >= spec["size"]:
        found.append(Problem("rank", str(spec["rank"]), f"less than size, {spec['size']}"))
    if (spec["rank"] == 0) != (spec["address"] == spec["head"]["address"]):
        wanted = "equal to" if spec["rank"] == 0 else "different from"
        found.append(Problem("address", spec["address"], f"{wanted} head.address, {spec['head']['address']}"))
    if spec["api"]["port"] == spec["head"]["master_port"]:
        found.append(Problem("api.port", str(spec["api"]["port"]), "a port other than head.master_port"))
    return found


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 120 else text[:117] + "..."
