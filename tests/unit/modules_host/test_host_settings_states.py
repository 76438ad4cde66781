"""Host settings in a directory that stands for a machine, with the processes replaced by a small model of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils.host_kinds import Outcome, Site
from ansible_collections.sparkmesh.cluster.plugins.module_utils.host_settings import problems_of, settle
from ansible_collections.sparkmesh.cluster.plugins.module_utils.host_sysctl import SYSCTL_FILE
from ansible_collections.sparkmesh.cluster.plugins.module_utils.journal import Journal, JournalError
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import CommandFailed, Result


class Machine:
    """systemctl, dpkg-query, apt-mark and apt-get over three dictionaries."""

    def __init__(self) -> None:
        self.units: dict[str, list[str]] = {
            "gdm3.service": ["loaded", "active"],
            "idle.service": ["loaded", "inactive"],
        }
        self.packages: dict[str, str] = {"linux-image-7.0.0-1019-nvidia": "install", "bash": "install"}
        self.available = {"lldpd"}
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, command: Sequence[str], *, check: bool = True, **_: Any) -> Result:
        argv = tuple(command)
        self.calls.append(argv)
        rc, out = getattr(self, "_" + argv[0].replace("-", "_"))(argv[1:])
        if check and rc:
            raise CommandFailed(f"`{' '.join(argv)}` ended with status {rc}", rc=rc)
        return Result(argv, rc, out, "")

    def _systemctl(self, argv: tuple[str, ...]) -> tuple[int, str]:
        if argv[0] == "show":
            states = [self.units.get(unit, ["not-found", "inactive"]) for unit in argv[2:]]
            return 0, "\n\n".join(f"LoadState={load}\nActiveState={active}" for load, active in states) + "\n"
        unit = self.units[argv[-1]]
        if argv[0] == "mask":
            unit[:] = ["masked", "inactive"]
        elif argv[0] == "unmask":
            unit[0] = "loaded"
        elif argv[0] == "start":
            unit[1] = "active"
        return 0, ""

    def _dpkg_query(self, argv: tuple[str, ...]) -> tuple[int, str]:
        patterns = argv[2:]
        hits = [name for name in self.packages if any(fnmatchcase(name, pattern) for pattern in patterns)]
        unmatched = [p for p in patterns if not any(fnmatchcase(name, p) for name in self.packages)]
        return int(bool(unmatched)), "".join(f"{name} {self.packages[name]} installed\n" for name in hits)

    def _apt_mark(self, argv: tuple[str, ...]) -> tuple[int, str]:
        for name in argv[1:]:
            self.packages[name] = "hold" if argv[0] == "hold" else "install"
        return 0, ""

    def _apt_get(self, argv: tuple[str, ...]) -> tuple[int, str]:
        names = [word for word in argv[1:] if not word.startswith("-")]
        if argv[0] == "install" and not set(names) <= self.available:
            return 100, ""
        self.packages.update(dict.fromkeys(names, "install"))
        return 0, ""


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for key, value in {"net/ipv4/conf/all/arp_ignore": "0", "vm/swappiness": "60", "net/range": "32768\t60999"}.items():
        file = tmp_path / "proc/sys" / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value + "\n")
    return tmp_path


def bring(
    root: Path, machine: Machine, settings: list[dict[str, Any]], state: str = "applied", **options: Any
) -> tuple[list[Outcome], Site]:
    assert problems_of(settings) == []
    site = Site(Journal("host", root), root, runner=machine, **options)
    return settle(settings, state, site), site


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    skip = root / "var/lib/sparkmesh"
    return {
        str(path.relative_to(root)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and skip not in path.parents
    }


def statuses(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.name: outcome.status for outcome in outcomes}


ALL: list[dict[str, Any]] = [
    {"name": "arp", "kind": "sysctl", "key": "net.ipv4.conf.all.arp_ignore", "value": "1"},
    {"name": "swap", "kind": "sysctl", "key": "vm.swappiness", "value": 10},
    {"name": "marker", "kind": "file", "path": "/etc/nvidia/cx7-hotplug-enabled", "absent": True},
    {"name": "conf", "kind": "file", "path": "/etc/new/dir/a.conf", "content": "x = 1\n", "mode": "0600"},
    {"name": "foreign", "kind": "file", "path": "/etc/foreign", "content": "ours\n"},
    {"name": "headless", "kind": "service_mask", "unit": "gdm3.service"},
    {"name": "nothing", "kind": "service_mask", "unit": "nvme.service"},
    {"name": "kernel", "kind": "hold", "packages": ["linux-image-*-nvidia", "nvidia-driver-*"]},
    {"name": "tools", "kind": "package", "packages": ["bash", "lldpd"]},
]


def foreign_files(root: Path) -> None:
    (root / "etc/nvidia").mkdir(parents=True)
    (root / "etc/nvidia/cx7-hotplug-enabled").write_bytes(b"\x00\xff")
    (root / "etc/foreign").write_bytes(b"theirs, no newline \xfe")
    (root / "etc/foreign").chmod(0o640)


def test_apply_again_and_back(root: Path, machine: Machine) -> None:
    foreign_files(root)
    before = snapshot(root)
    first, _ = bring(root, machine, ALL)
    assert statuses(first) == {
        "arp": "changed", "swap": "changed", "marker": "changed", "conf": "changed", "foreign": "changed",
        "headless": "changed", "nothing": "not_applicable", "kernel": "changed", "tools": "changed",
    }  # fmt: skip
    assert [outcome.name for outcome in first] == [setting["name"] for setting in ALL]
    assert (root / "etc/new/dir/a.conf").stat().st_mode & 0o777 == 0o600
    assert (root / "proc/sys/vm/swappiness").read_text() == "10\n"
    assert "vm.swappiness = 10\n" in (root / SYSCTL_FILE.lstrip("/")).read_text()
    assert machine.packages["linux-image-7.0.0-1019-nvidia"] == "hold"
    assert "lldpd" in machine.packages

    applied = snapshot(root)
    second, site = bring(root, machine, ALL)
    assert set(statuses(second).values()) == {"ok", "not_applicable"}
    assert site.diffs == [] and snapshot(root) == applied

    back, _ = bring(root, machine, ALL, "reverted")
    assert "failed" not in statuses(back).values()
    assert snapshot(root) == before
    assert not (root / "etc/new").exists()
    assert machine.units["gdm3.service"] == ["loaded", "active"]
    assert machine.packages["linux-image-7.0.0-1019-nvidia"] == "install"
    again, _ = bring(root, machine, ALL, "reverted")
    assert "changed" not in statuses(again).values()


@pytest.mark.parametrize("how", ["dry", "checked"])
def test_looking_changes_nothing_and_shows_everything(root: Path, machine: Machine, how: str) -> None:
    foreign_files(root)
    before = snapshot(root)
    outcomes, site = bring(root, machine, ALL, "checked" if how == "checked" else "applied", dry=how == "dry")
    assert {status for name, status in statuses(outcomes).items() if name != "nothing"} == {"would_change"}
    assert snapshot(root) == before
    assert not (root / "var/lib/sparkmesh").exists()
    assert {argv[:2] for argv in machine.calls} <= {("systemctl", "show"), ("dpkg-query", "--show")}
    shown = {part.get("after_header"): part for part in site.diffs}
    assert shown["/etc/foreign"]["before"].startswith("theirs")
    assert shown["/etc/foreign"]["after"] == "ours\n"
    assert SYSCTL_FILE in shown


def test_one_process_for_all_masks_and_one_for_all_holds(root: Path, machine: Machine) -> None:
    settings: list[dict[str, Any]] = [
        {"name": f"u{n}", "kind": "service_mask", "unit": f"u{n}.service"} for n in range(5)
    ]
    settings += [{"name": f"h{n}", "kind": "hold", "packages": [f"p{n}"]} for n in range(5)]
    bring(root, machine, settings)
    assert len(machine.calls) == 2


def test_in_a_container_kernel_wide_keys_do_not_apply(root: Path, machine: Machine) -> None:
    settings = [*ALL[:2], {**ALL[3], "applies": {"containers": False, "reason": "no watchdog here"}}]
    outcomes, _ = bring(root, machine, settings, container="docker")
    assert statuses(outcomes) == {"arp": "changed", "swap": "not_applicable", "conf": "not_applicable"}
    assert "shares" in outcomes[1].reason and outcomes[2].reason == "no watchdog here"
    assert (root / "proc/sys/vm/swappiness").read_text() == "60\n"
    assert "swappiness" not in (root / SYSCTL_FILE.lstrip("/")).read_text()
    real, _ = bring(root, machine, settings)
    assert statuses(real) == {"arp": "ok", "swap": "changed", "conf": "changed"}


@pytest.mark.parametrize(("container", "status"), [("docker", "not_applicable"), (None, "failed")])
def test_refused_sysctl(
    root: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch, container: str | None, status: str
) -> None:
    plain_write = Path.write_text

    def refuse(path: Path, *args: Any, **options: Any) -> int:
        if path.name == "arp_ignore":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return plain_write(path, *args, **options)

    monkeypatch.setattr(Path, "write_text", refuse)
    outcomes, _ = bring(root, machine, [ALL[0]], container=container)
    assert outcomes[0].status == status
    assert "Read-only file system" in outcomes[0].reason
    assert not (root / SYSCTL_FILE.lstrip("/")).exists()
    assert Journal("host", root).noted("sysctl", "net.ipv4.conf.all.arp_ignore") is None


def test_unknown_key_fails_on_a_real_machine_and_tabs_are_spaces(root: Path, machine: Machine) -> None:
    settings: list[dict[str, Any]] = [
        {"name": "range", "kind": "sysctl", "key": "net.range", "value": "32768 60999"},
        {"name": "typo", "kind": "sysctl", "key": "net.nonsense", "value": "1"},
    ]
    outcomes, _ = bring(root, machine, settings)
    # The live value is right; the file for the next boot is not there yet.
    assert statuses(outcomes) == {"range": "changed", "typo": "failed"}
    assert (root / "proc/sys/net/range").read_text() == "32768\t60999\n"
    assert statuses(bring(root, machine, settings[:1])[0]) == {"range": "ok"}


def test_failed_package_names_itself_and_stops_nothing_else(root: Path, machine: Machine) -> None:
    settings: list[dict[str, Any]] = [{"name": "gone", "kind": "package", "packages": ["no-such"]}, ALL[0]]
    outcomes, _ = bring(root, machine, settings)
    assert statuses(outcomes) == {"gone": "failed", "arp": "changed"}
    assert "no-such" in outcomes[0].reason and outcomes[0].seen == "missing: no-such"


def test_first_original_wins_and_a_link_comes_back_as_a_link(root: Path, machine: Machine) -> None:
    (root / "etc").mkdir()
    (root / "etc/real").write_text("real")
    (root / "etc/link").symlink_to("real")
    one = [{"name": "l", "kind": "file", "path": "/etc/link", "content": "one"}]
    bring(root, machine, one)
    bring(root, machine, [{**one[0], "content": "two"}])
    assert not (root / "etc/link").is_symlink() and (root / "etc/link").read_text() == "two"
    assert (root / "etc/real").read_text() == "real"
    bring(root, machine, one, "reverted")
    assert (root / "etc/link").readlink() == Path("real")


def test_altered_backup_is_never_restored(root: Path, machine: Machine) -> None:
    foreign_files(root)
    bring(root, machine, [ALL[4]])
    (copy,) = [path for path in (root / "var/lib/sparkmesh/backup").iterdir() if path.suffix != ".json"]
    copy.write_bytes(b"tampered")
    outcomes, _ = bring(root, machine, [ALL[4]], "reverted")
    assert outcomes[0].status == "failed" and "was altered" in outcomes[0].reason
    assert (root / "etc/foreign").read_text() == "ours\n"


def test_broken_journal_stops_everything(root: Path) -> None:
    directory = root / "var/lib/sparkmesh/backup"
    directory.mkdir(parents=True)
    (directory / "host.json").write_text("{")
    with pytest.raises(JournalError, match="only way back"):
        Journal("host", root)


def test_bad_descriptors_are_named() -> None:
    problems = problems_of(
        [
            {"name": "a", "kind": "sysctl", "key": "x"},
            {"name": "a", "kind": "file", "path": "rel", "content": "", "absent": True},
            {"name": "b", "kind": "magic"},
            {"kind": "hold", "packages": [], "colour": 1},
        ]
    )
    text = "\n".join(problems)
    for part in (
        "lacks value",
        "there twice",
        "either content or absent",
        "absolute",
        "'magic'",
        "has no name",
        "colour",
    ):
        assert part in text
