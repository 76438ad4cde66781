"""``python -m spark_cli VERB``; see verbs.py for the command line. Needs scripts/ and collections/ in PYTHONPATH."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TextIO

from spark_cli.play import run
from spark_cli.verbs import Request, UsageError, parse

#: Exit statuses of this command itself; a run's own status is ansible-playbook's.
USAGE, REFUSED = 64, 77


def main(argv: list[str], root: Path) -> int:
    try:
        request = parse(argv, root)
        _require_playbook(request, root)
    except UsageError as error:
        print(error, file=sys.stderr)
        return USAGE
    out = sys.stderr if request.json else sys.stdout
    if not _agreed(request, out):
        return REFUSED
    if request.verb.lab:
        rc = _lab(request.verb.lab, root, out)
        if rc or request.verb.playbook is None:
            _print_json(request, {"schema": 1, "verb": request.verb.name, "rc": rc, "ok": rc == 0})
            return rc
    rc, summary = run(request, root, out)
    _print_json(request, summary)
    return rc


def _print_json(request: Request, summary: dict[str, object]) -> None:
    if request.json:
        print(json.dumps(summary, indent=1))


def _require_playbook(request: Request, root: Path) -> None:
    playbook = request.verb.playbook
    if playbook and not (root / playbook).is_file():
        stems = sorted(path.stem for path in (root / "playbooks").glob("*.yml") if "." not in path.stem)
        there = ", ".join(stems) or "none"
        raise UsageError(f"{root / playbook} does not exist; the playbooks there are: {there}")


def _agreed(request: Request, out: TextIO) -> bool:
    """Asks before a disruptive verb; without a terminal only --yes is consent."""
    if not request.verb.warning or request.yes or request.check:
        return True
    text = f"spark {request.verb.name} on {request.inventory.name}: {request.verb.warning}"
    if not sys.stdin.isatty():
        print(f"{text} Refused without a terminal; say --yes, or --check to see what would happen.", file=sys.stderr)
        return False
    print(f"{text} Go on? [y/N] ", end="", file=out, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _lab(arguments: tuple[str, ...], root: Path, out: TextIO) -> int:
    command = [sys.executable, "-m", "lab", *arguments]
    print(f"python -m lab {' '.join(arguments)}", file=out, flush=True)
    try:
        return subprocess.run(command, cwd=root, stdout=out, check=False).returncode
    except KeyboardInterrupt:
        print("interrupted: running the same verb again is safe", file=out)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parents[2]))
