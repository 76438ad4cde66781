"""The kinds of host settings except sysctl: files, masked units, held and present packages."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.sparkmesh.cluster.plugins.module_utils.journal import Journal, JournalError
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import CommandFailed, Runner, run, write_file

# The first package run after a boot may wait for unattended-upgrades; that takes minutes, not seconds.
_APT_SECONDS = 900.0
_APT_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_MODE": "l"}


@dataclass
class Outcome:
    """What became of one setting; ``status`` is ok, changed, would_change, not_applicable or failed."""

    name: str
    status: str
    seen: str = ""
    wanted: str = ""
    reason: str = ""

    def as_result(self) -> dict[str, str]:
        """The plain form a module returns."""
        return asdict(self)


@dataclass
class Site:
    """The machine settings are brought to. ``dry`` changes nothing; ``diffs`` collects what Ansible shows."""

    journal: Journal
    root: Path = Path("/")
    container: str | None = None
    dry: bool = False
    runner: Runner = run
    diffs: list[dict[str, str]] = field(default_factory=list)

    def path(self, path: str) -> Path:
        """Where ``path`` of the machine lies for us."""
        return self.root / path.lstrip("/")

    def write(self, path: str, content: bytes, mode: int) -> None:
        """Write a file of the machine, owned by root."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, content, mode, (0, 0) if os.geteuid() == 0 else None)

    def show(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """Add a file's change to the diff."""
        self.diffs.append(
            {
                "before_header": path if before is not None else f"{path} (absent)",
                "after_header": path if after is not None else f"{path} (absent)",
                "before": (before or b"").decode(errors="replace"),
                "after": (after or b"").decode(errors="replace"),
            }
        )

    def show_change(self, what: str, before: str, after: str) -> None:
        """Add a change that is no file to the diff."""
        self.diffs.append({"prepared": f"--- {what}\n+++ {what}\n-{before}\n+{after}\n"})


class Kind(Protocol):
    """One kind of setting: brings all its descriptors into a state with as few processes as it can."""

    def settle(self, settings: Sequence[Mapping[str, Any]], state: str) -> list[Outcome]:
        """One outcome for each descriptor, in their order."""


class FileKind:
    """A file with given bytes and mode owned by root, or (``absent: true``) no file at all."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def settle(self, settings: Sequence[Mapping[str, Any]], state: str) -> list[Outcome]:
        outcomes = []
        for setting in settings:
            try:
                outcomes.append(self._revert(setting) if state == "reverted" else self._apply(setting, state))
            except (OSError, JournalError) as problem:
                outcomes.append(Outcome(setting["name"], "failed", reason=f"{setting['path']}: {problem}"))
        return outcomes

    def _apply(self, setting: Mapping[str, Any], state: str) -> Outcome:
        path = str(setting["path"])
        mode = _mode(setting.get("mode", "0644"))
        wanted = None if setting.get("absent") else str(setting["content"]).encode()
        before, seen = self._look(path)
        wish = "absent" if wanted is None else f"{len(wanted)} bytes, mode {mode:04o}, owner root"
        outcome = Outcome(setting["name"], "ok", seen=seen, wanted=wish)
        same_shape = wanted is None or seen.endswith(f"mode {mode:04o}, owner root")
        if before == wanted and same_shape and seen != "a link":
            return outcome
        self._site.show(path, before, wanted)
        if before == wanted:
            self._site.show_change(f"{path} (mode, owner)", seen, wish)
        if state == "checked" or self._site.dry:
            outcome.status = "would_change"
            return outcome
        self._site.journal.keep(path)
        if wanted is None:
            self._site.path(path).unlink(missing_ok=True)
        else:
            self._site.write(path, wanted, mode)
        outcome.status = "changed"
        return outcome

    def _revert(self, setting: Mapping[str, Any]) -> Outcome:
        path = str(setting["path"])
        before, seen = self._look(path)
        outcome = Outcome(setting["name"], "ok", seen=seen, wanted="as before sparkmesh")
        if path not in self._site.journal.kept:
            outcome.reason = "sparkmesh never changed it"
            return outcome
        self._site.show(path, before, self._site.journal.original(path))
        if self._site.dry:
            outcome.status = "would_change"
            return outcome
        self._site.journal.restore(path)
        outcome.status = "changed"
        return outcome

    def _look(self, path: str) -> tuple[bytes | None, str]:
        real = self._site.path(path)
        if real.is_symlink():
            return (real.read_bytes() if real.is_file() else b""), "a link"
        if not real.exists():
            return None, "absent"
        info = real.stat()
        content = real.read_bytes()
        # Away from the real root (a tree in a test) files belong to whoever made them.
        owned = "root" if info.st_uid == 0 or str(self._site.root) != "/" else f"uid {info.st_uid}"
        return content, f"{len(content)} bytes, mode {stat.S_IMODE(info.st_mode):04o}, owner {owned}"


class MaskKind:
    """A unit that must never run: stopped and masked; a revert unmasks it and starts it when it was running."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def settle(self, settings: Sequence[Mapping[str, Any]], state: str) -> list[Outcome]:
        units = [str(setting["unit"]) for setting in settings]
        shown = self._site.runner(["systemctl", "show", "--property=LoadState,ActiveState", *units]).out
        # systemctl answers in the order of its arguments; an alias answers under its real name, so names do not help.
        blocks = [dict(line.split("=", 1) for line in block.splitlines()) for block in shown.strip().split("\n\n")]
        if len(blocks) != len(units):
            raise CommandFailed(f"systemctl show described {len(blocks)} units, wanted {len(units)}: {' '.join(units)}")
        return [
            self._one(setting, block, state) for setting, block in zip(settings, blocks, strict=True)
        ]  # fmt: skip

    def _one(self, setting: Mapping[str, Any], seen: Mapping[str, str], state: str) -> Outcome:
        unit = str(setting["unit"])
        load, active = seen.get("LoadState", ""), seen.get("ActiveState", "")
        outcome = Outcome(setting["name"], "ok", seen=f"{load}, {active}", wanted="masked, inactive")
        original = self._site.journal.noted("masked", unit)
        if state == "reverted":
            outcome.wanted = "as before sparkmesh"
            if original is None:
                outcome.reason = "sparkmesh never masked it"
                return outcome
            commands = [["systemctl", "unmask", unit]]
            if original["active"] in ("active", "activating"):
                commands.append(["systemctl", "start", unit])
        elif load == "not-found":
            outcome.status, outcome.reason = "not_applicable", f"no unit {unit} is installed here"
            return outcome
        elif load == "masked" and active in ("inactive", "failed"):
            return outcome
        else:
            commands = [["systemctl", "mask", "--now", unit]]
        self._site.show_change(unit, outcome.seen, outcome.wanted)
        if state == "checked" or self._site.dry:
            outcome.status = "would_change"
            return outcome
        try:
            if state == "applied" and load != "masked":
                self._site.journal.note("masked", unit, {"active": active})
            for command in commands:
                self._site.runner(command, timeout=120.0)
            if state == "reverted":
                self._site.journal.forget("masked", unit)
        except CommandFailed as problem:
            outcome.status, outcome.reason = "failed", str(problem)
            return outcome
        outcome.status = "changed"
        return outcome


class HoldKind:
    """Packages that must not move by themselves. Names may be globs; what is not installed is not held."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def settle(self, settings: Sequence[Mapping[str, Any]], state: str) -> list[Outcome]:
        patterns = sorted({pattern for setting in settings for pattern in setting["packages"]})
        packages = package_states(patterns, self._site.runner)
        return [self._one(setting, packages, state) for setting in settings]

    def _one(self, setting: Mapping[str, Any], packages: Mapping[str, str], state: str) -> Outcome:
        patterns = list(setting["packages"])
        mine = sorted(name for name in packages if any(fnmatchcase(name, pattern) for pattern in patterns))
        outcome = Outcome(setting["name"], "ok", wanted=f"held: {' '.join(mine)}")
        if not mine:
            outcome.status, outcome.wanted = "not_applicable", f"held: {' '.join(patterns)}"
            outcome.reason = f"none of {' '.join(patterns)} is installed"
            return outcome
        held = [name for name in mine if packages[name] == "hold"]
        outcome.seen = f"held: {' '.join(held) or 'none'}"
        journal = self._site.journal
        if state == "reverted":
            outcome.wanted = "as before sparkmesh"
            touch = [name for name in held if journal.noted("held", name)]
        else:
            touch = [name for name in mine if name not in held]
        if not touch:
            return outcome
        verb = "unhold" if state == "reverted" else "hold"
        self._site.show_change(f"apt-mark {verb}", outcome.seen, f"{verb}: {' '.join(touch)}")
        if state == "checked" or self._site.dry:
            outcome.status = "would_change"
            return outcome
        try:
            if state == "applied":
                for name in touch:
                    journal.note("held", name, True)
            self._site.runner(["apt-mark", verb, *touch])
            if state == "reverted":
                for name in touch:
                    journal.forget("held", name)
        except CommandFailed as problem:
            outcome.status, outcome.reason = "failed", str(problem)
            return outcome
        outcome.status = "changed"
        return outcome


class PackageKind:
    """Packages that must be there. A revert leaves them: others may have come to need them."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def settle(self, settings: Sequence[Mapping[str, Any]], state: str) -> list[Outcome]:
        if state == "reverted":
            return [
                Outcome(s["name"], "not_applicable", reason="packages stay: something else may need them by now")
                for s in settings
            ]
        wanted = sorted({name for setting in settings for name in setting["packages"]})
        missing = set(wanted) - set(package_states(wanted, self._site.runner))
        trouble = ""
        if missing:
            self._site.show_change("packages", f"missing: {' '.join(sorted(missing))}", "installed")
            if state == "applied" and not self._site.dry:
                trouble = self._install(sorted(missing))
        outcomes = []
        for setting in settings:
            names = list(setting["packages"])
            lacking = [name for name in names if name in missing]
            outcome = Outcome(setting["name"], "ok", "all installed", f"installed: {' '.join(names)}")
            if lacking:
                outcome.seen = f"missing: {' '.join(lacking)}"
                outcome.status = "would_change" if state == "checked" or self._site.dry else "changed"
                if trouble:
                    outcome.status, outcome.reason = "failed", trouble
            outcomes.append(outcome)
        return outcomes

    def _install(self, names: list[str]) -> str:
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *names]
        options: dict[str, Any] = {"timeout": _APT_SECONDS, "environment": _APT_ENVIRONMENT}
        # Package lists on an appliance are often stale; one refresh, and only when something is missing.
        refresh = self._site.runner(["apt-get", "update"], check=False, **options)
        try:
            self._site.runner(install, **options)
        except CommandFailed as problem:
            return f"{problem}" if refresh.rc == 0 else f"{problem}; `apt-get update` failed too: {refresh.complaint()}"
        return ""


def package_states(patterns: Iterable[str], runner: Runner) -> dict[str, str]:
    """Installed packages that match the names or globs, with dpkg's wish for each ("install", "hold")."""
    names = list(patterns)
    if not names:
        return {}
    # dpkg-query exits with 1 when some pattern matches nothing, and still prints the rest.
    form = "${Package} ${db:Status-Want} ${db:Status-Status}\n"
    result = runner(["dpkg-query", "--show", f"--showformat={form}", *names], check=False)
    if result.rc > 1:
        raise CommandFailed(f"dpkg-query ended with status {result.rc}: {result.complaint()}", rc=result.rc)
    lines = [line.split() for line in result.out.splitlines()]
    return {line[0]: line[1] for line in lines if len(line) == 3 and line[2] == "installed"}


def _mode(value: object) -> int:
    # YAML turns an unquoted 0644 into the number 420; both spellings mean the same file mode.
    return value if isinstance(value, int) else int(str(value), 8)
