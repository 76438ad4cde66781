"""benchmarks/converge.py: the budget, and one real measurement."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def converge() -> ModuleType:
    spec = importlib.util.spec_from_file_location("converge_benchmark", REPO / "benchmarks/converge.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["converge_benchmark"] = module
    spec.loader.exec_module(module)
    return module


def report(rows: int = 60, changed: int = 0, **trips: int) -> dict[str, Any]:
    play = {"name": "host", "rows": rows, "trips": trips, "seconds": 1.0}
    return {"rows": rows, "trips": trips, "changed": changed, "seconds": 1.0, "plays": [play]}


def test_at_the_budget_is_within_it(converge: ModuleType) -> None:
    assert converge.over_budget(report(60, one=25, two=25, localhost=99), 60, 25) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (report(61, one=1), "61 task rows, wanted at most 60 (host 61)"),
        (report(1, one=26, two=1), "one: 26 module round trips, wanted at most 25 (host 26)"),
        (report(1, changed=2), "2 changed, wanted 0"),
    ],
)
def test_over_the_budget_says_where(converge: ModuleType, data: dict[str, Any], words: str) -> None:
    (problem,) = converge.over_budget(data, 60, 25)
    assert problem.startswith(words)


def test_measures_a_real_run(
    converge: ModuleType, site: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(converge, "ROOT", site)
    arguments = ["-i", "inventories/lab", "--runs", "1", "--output", str(site / "converge.log"), "playbooks/quick.yml"]
    assert converge.main([*arguments, "--max-rows", "2", "--max-trips", "1"]) == 0
    assert converge.main([*arguments, "--max-rows", "1", "--max-trips", "1"]) == 1
    assert converge.main([*arguments[:-1], "playbooks/missing.yml"]) == 2
