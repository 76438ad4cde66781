"""The verbs, their playbooks, and the command line."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Verb:
    """One verb: ``playbook`` is relative to the repository, ``lab`` are the arguments of ``python -m lab``, run first.

    ``warning`` is what a person must agree to before it runs.
    """

    name: str
    help: str
    playbook: str | None = None
    lab: tuple[str, ...] = ()
    inventory: str = "lab"
    warning: str = ""


VERBS = {
    verb.name: verb
    for verb in (
        Verb("lab", "start three emulated Sparks here and converge them", "site.yml", ("up", "--topology", "triangle")),
        Verb("lab-ring", "the same with four in a ring", "site.yml", ("up", "--topology", "ring"), "lab-ring"),
        Verb("lab-down", "stop and remove the lab", None, ("down",)),
        Verb("site", "converge everything: from an inventory to a served model", "site.yml"),
        Verb("preflight", "check inventory and nodes, change nothing", "playbooks/preflight.yml"),
        Verb("host", "host settings and kernel", "playbooks/host.yml"),
        Verb("fabric", "addresses, MTU and proof of every cable", "playbooks/fabric.yml"),
        Verb("image", "build the serving image once and spread it", "playbooks/image.yml"),
        Verb("model", "download the model once, verify and spread it", "playbooks/model.yml"),
        Verb("deploy", "install and start a release", "playbooks/deploy.yml"),
        Verb("verify", "ask the served model a question", "playbooks/verify.yml"),
        Verb("status", "what runs where, read only", "playbooks/status.yml"),
        Verb("doctor", "every check, read only, with the fix for each finding", "playbooks/doctor.yml"),
        Verb("bench", "speed and quality of the running release", "playbooks/bench.yml"),
        Verb("stop", "stop serving", "playbooks/stop.yml", warning="The endpoint stops answering."),
        Verb(
            "rollback",
            "back to the previous release",
            "playbooks/rollback.yml",
            warning="All ranks restart with the previous release.",
        ),
        Verb("reboot", "reboot the nodes, canary first", "playbooks/reboot.yml", warning="Nodes reboot."),
        Verb(
            "recable",
            "show and apply the plan for moved cables",
            "playbooks/recable.yml",
            warning="Fabric links change; a running release loses its peers.",
        ),
        Verb("prune", "delete model revisions that are not in force", "playbooks/prune.yml"),
        Verb(
            "reset",
            "take the service, the addresses and the settings off the nodes",
            "playbooks/reset.yml",
            warning="The service, the fabric's addresses and the host's settings go; images, models and releases stay.",
        ),
    )
}

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,15})")


class UsageError(Exception):
    """What the person typed cannot be done; the text says what can."""


@dataclass(frozen=True)
class Request:
    """A checked command line. ``ansible_args`` go to ansible-playbook as they are."""

    verb: Verb
    inventory: Path
    ansible_args: tuple[str, ...]
    check: bool
    json: bool
    yes: bool

    @property
    def cmdline(self) -> str:
        return shlex.join(self.ansible_args)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}\n{self.format_usage().strip()}")


def parser() -> argparse.ArgumentParser:
    """The command line; its help lists the verbs."""
    width = max(len(name) for name in VERBS)
    verbs = "\n".join(f"  {verb.name:<{width}}  {verb.help}" for verb in VERBS.values())
    parse = _Parser(
        prog="spark",
        description="Runs one verb on the nodes of an inventory.",
        epilog=f"verbs:\n{verbs}\n\nA run may be repeated at any time; what is right already is left alone.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parse.add_argument
    add("verb", metavar="VERB")
    add("-i", "--inventory", metavar="DIR", help="a folder of inventories/, or a path (default: lab)")
    add("--check", action="store_true", help="change nothing, tell what would change")
    add("--diff", action="store_true", help="show differences of files and settings")
    add("--limit", metavar="HOSTS")
    add("--tags", metavar="TAGS")
    add("-e", "--extra-vars", action="append", default=[], metavar="NAME=VALUE", help="VALUE may be JSON; also @FILE")
    add("-v", "--verbose", action="count", default=0, help="more of Ansible's own output in the artifacts")
    add("--json", action="store_true", help="a summary for machines on standard output, progress on standard error")
    add("--yes", action="store_true", help="do not ask before a disruptive verb")
    return parse


def parse(argv: list[str], root: Path) -> Request:
    """Reads the command line. Raises UsageError with a text for the person."""
    options = parser().parse_args(argv)
    verb = find_verb(options.verb)
    args: list[str] = []
    for flag in ("check", "diff"):
        args += [f"--{flag}"] if getattr(options, flag) else []
    for name in ("limit", "tags"):
        value = getattr(options, name)
        args += [f"--{name}", value] if value else []
    for item in options.extra_vars:
        args += ["-e", typed_variable(item)]
    args += [f"-{'v' * options.verbose}"] if options.verbose else []
    inventory = root if verb.playbook is None else find_inventory(options.inventory or verb.inventory, root)
    return Request(verb, inventory, tuple(args), options.check, options.json, options.yes)


def find_verb(name: str) -> Verb:
    if name in VERBS:
        return VERBS[name]
    close = difflib.get_close_matches(name, VERBS, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else f"the verbs are: {' '.join(VERBS)}"
    raise UsageError(f"spark has no verb {name!r}; {hint}")


def find_inventory(name: str, root: Path) -> Path:
    """A path as given, or a folder of ``inventories/`` by its name."""
    named = root / "inventories" / name
    given = Path(name).expanduser()
    # A name wins over a path: `lab` is also a folder of this repository.
    if "/" not in name and named.exists():
        return named.resolve()
    if given.exists() and (given.is_file() or any(given.iterdir())) and ("/" in name or not given.is_dir()):
        return given.resolve()
    folders = sorted(entry.name for entry in (root / "inventories").glob("*") if entry.is_dir())
    sites = [folder for folder in folders if folder != "common"]
    there = ", ".join(sites) if sites else "none"
    raise UsageError(
        f"inventory {name!r} does not exist or is empty (looked for {named} and {given.absolute()}); "
        f"the folders in inventories/ are: {there}. Copy one of them and write your hosts into it."
    )


def typed_variable(item: str) -> str:
    """``name=value`` as JSON when the value is JSON, because Ansible would keep ``mtu=9000`` a string.

    Only plain integers, true, false, null, quoted strings, lists and objects count: an id such as 12e5 stays text.
    """
    name, equals, value = item.partition("=")
    if item.startswith(("@", "{", "[")) or not equals or not name.isidentifier():
        return item
    if not (_INTEGER.fullmatch(value) or value in ("true", "false", "null") or value[:1] in ('"', "[", "{")):
        return json.dumps({name: value})
    try:
        return json.dumps({name: json.loads(value)})
    except json.JSONDecodeError as error:
        raise UsageError(f"-e {item}: the value looks like JSON but is not: {error}") from error
