"""What a converge costs when nothing is to be done.

Runs a playbook several times and prints, for each run, wall seconds, task rows and module round trips per host, as
the report callback counted them (module_utils/run_report.py). Run it on a converged site:

    PYTHONPATH=collections python benchmarks/converge.py -i inventories/lab --runs 3 site.yml

Exit status: 0 within the budget, 1 over it (a run that changed something is over it too), 2 when a run failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.run_report import newest_report, table

ROOT = Path(__file__).resolve().parent.parent


class RunFailed(Exception):
    """A playbook failed; there is nothing to measure."""


def measure(playbook: str, arguments: list[str], output: Path) -> dict[str, Any]:
    """Runs the playbook once; its report. Ansible's output goes to the file ``output``."""
    with tempfile.TemporaryDirectory() as reports:
        environment = {
            **os.environ,
            "SPARKMESH_REPORT_DIR": reports,
            "ANSIBLE_CALLBACKS_ENABLED": "sparkmesh.cluster.report",
        }
        with output.open("a", encoding="utf-8") as log:
            done = subprocess.run(
                ["ansible-playbook", *arguments, playbook],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                check=False,
            )
        report = newest_report(Path(reports))
        if done.returncode or report is None:
            raise RunFailed(f"{playbook} ended with status {done.returncode}; its output is in {output}")
        return dict(json.loads(report.read_text(encoding="utf-8")))


def over_budget(report: Mapping[str, Any], max_rows: int, max_trips: int) -> list[str]:
    """What the run costs beyond the budget, in words; the controller's own trips are not counted."""
    problems = []
    if report["changed"]:
        problems.append(f"{report['changed']} changed, wanted 0: converge the site first, or a task is not idempotent")
    if report["rows"] > max_rows:
        plays = ", ".join(f"{play['name']} {play['rows']}" for play in report["plays"])
        problems.append(f"{report['rows']} task rows, wanted at most {max_rows} ({plays})")
    for host, trips in report["trips"].items():
        if host != "localhost" and trips > max_trips:
            plays = ", ".join(f"{p['name']} {p['trips'][host]}" for p in report["plays"] if host in p["trips"])
            problems.append(f"{host}: {trips} module round trips, wanted at most {max_trips} ({plays})")
    return problems


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("playbook")
    parser.add_argument("-i", "--inventory", default="inventories/lab")
    parser.add_argument("-n", "--runs", type=int, default=3)
    parser.add_argument("--max-rows", type=int, default=60)
    parser.add_argument("--max-trips", type=int, default=25)
    parser.add_argument("--output", type=Path, default=Path("converge.log"), help="Ansible's own output")
    parser.add_argument("--json", type=Path, help="write the measurements there too")
    options, more = parser.parse_known_args(argv)
    runs: list[dict[str, Any]] = []
    try:
        for number in range(1, options.runs + 1):
            runs.append(measure(options.playbook, ["-i", options.inventory, *more], options.output))
            print(f"run {number}: {runs[-1]['seconds']:.1f} s", flush=True)
    except RunFailed as error:
        print(f"converge: {error}", file=sys.stderr)
        return 2
    print("\n".join(table(runs[-1])))
    seconds = sorted(run["seconds"] for run in runs)
    print(f"wall seconds: best {seconds[0]:.1f}, middle {seconds[len(seconds) // 2]:.1f}, worst {seconds[-1]:.1f}")
    problems = over_budget(runs[-1], options.max_rows, options.max_trips)
    if options.json:
        runs_data = [{key: run[key] for key in ("seconds", "rows", "trips", "changed")} for run in runs]
        options.json.write_text(json.dumps({"playbook": options.playbook, "runs": runs_data}, indent=1) + "\n")
    for problem in problems:
        print(f"over budget: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
