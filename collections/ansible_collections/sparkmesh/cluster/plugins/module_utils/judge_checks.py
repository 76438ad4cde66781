"""The tables of the judge: what may be expected, and the row that checks it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ansible_collections.sparkmesh.cluster.plugins.module_utils.probe_fabric import ipv4_of_gid


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


# Not there at all, as against None: looked for and absent.
MISSING: Final = _Missing()

_Path = tuple[str, ...]
_Test = Callable[[Any], bool]

# What an expectation may hold, by section, and the kind of each value. Bytes for sizes, Mb/s for speed; ``links`` are
# those of one node of a fabric plan; ``uvm`` are values of the loaded nvidia-uvm; ``storage`` maps a path to the least
# free bytes there.
EXPECT: dict[str, dict[str, type]] = {
    "host": {
        "architecture": str,
        "os_id": str,
        "os_version": str,
        "python_minimum": str,
        "docker_minimum": str,
        "clock_synchronized": bool,
    },
    "kernel": {"release": str, "page_size": int, "cmdline": list},
    "fabric": {"links": list, "mtu": int, "speed": int, "rdma": bool},
    "gpu": {"driver": str, "names": list, "uvm": dict},
    "memory": {"available_bytes": int, "total_bytes": int},
    "storage": {},
    "image": {"identity": str, "source_id": str},
    "model": {"manifest": str},
    "runtime": {"active": bool, "release": str, "group_hash": str},
}
UNITS = {"runtime.unit": "sparkmesh-rank.service", "runtime.guard": "sparkmesh-guard.service"}
# What the lab calls the parts it makes up, and the probe keys that these are.
EMULATED = {
    "rdma": "fabric.hcas",
    "links": "fabric.interfaces",
    "clock": "host.clock",
    "boot_id": "host.boot_id",
}


@dataclass(frozen=True)
class Check:
    """One row. ``absent_from``: from this depth of ``path`` on, a missing key means absent, not unobserved;
    ``absent_ok``: absent is as good as wanted.

    ``also`` are further probe keys whose loss makes the value worthless; ``machine`` marks what a container does not
    own, unless ``emulable`` and the lab makes that part up; ``show`` turns the value into what the report prints.
    """

    id: str
    path: _Path
    title: str
    wanted: Any
    test: _Test
    fix: str
    machine: bool = False
    emulable: bool = False
    severity: str = "fail"
    absent_from: int | None = None
    absent_ok: bool = False
    also: tuple[str, ...] = ()
    show: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Alike:
    """One value that must be the same on all nodes."""

    id: str
    path: _Path
    title: str
    fix: str
    machine: bool = False
    severity: str = "fail"


ALIKE = (
    Alike("equal.architecture", ("host", "architecture"), "same architecture", "one image serves one architecture"),
    Alike("equal.kernel", ("kernel", "release"), "same kernel", "install the same kernel and reboot", machine=True),
    Alike("equal.page_size", ("kernel", "page_size"), "same page size", "boot the same kernel flavour", machine=True),
    Alike("equal.docker", ("host", "docker", "version"), "same Docker", "install the same version", severity="warn"),
    Alike("equal.python", ("host", "python"), "same Python", "install the same version", severity="warn"),
)


def walk(probe: Mapping[str, Any], path: _Path, absent_from: int | None = None) -> Any:
    """The value at ``path``; None where a parent is None or, from depth ``absent_from`` on, a key is not there."""
    value: Any = probe
    for depth, key in enumerate(path):
        if value is None:
            return None
        if not isinstance(value, Mapping) or key not in value:
            return None if absent_from is not None and depth >= absent_from else MISSING
        value = value[key]
    return value


def expectation_problems(expect: Mapping[str, Any]) -> list[str]:
    """Keys and kinds that no check knows, with the nearest known name."""
    problems = []
    for section, wanted in expect.items():
        if section not in EXPECT:
            problems.append(f"expect.{section} is unknown{_hint(section, list(EXPECT))}")
        elif not isinstance(wanted, Mapping):
            problems.append(f"expect.{section} is {wanted!r}, wanted a mapping")
        else:
            # Storage has paths for keys.
            kinds = EXPECT[section] or dict.fromkeys(wanted, int)
            for key, value in wanted.items():
                if key not in kinds:
                    problems.append(f"expect.{section}.{key} is unknown{_hint(key, list(kinds))}")
                elif type(value) is not kinds[key]:
                    problems.append(f"expect.{section}.{key} is {value!r}, wanted {kinds[key].__name__}")
                elif key.endswith("_minimum") and not _version(str(value)):
                    problems.append(f"expect.{section}.{key} is {value!r}, wanted a version such as 3.11")
    return problems or _fabric_problems(expect.get("fabric", {}))


def checks_of(expect: Mapping[str, Any], probe: Mapping[str, Any]) -> Iterator[Check]:
    """The rows that ``expect`` asks for. ``probe`` decides only that an absent interface is asked nothing else."""
    for section, key, check_id, path, title, fix, options in _SCALARS:
        if key in expect.get(section, {}):
            wanted = expect[section][key]
            yield Check(check_id, path, title, wanted, _same(wanted), fix, **options)
    yield from _minimums(expect)
    for word in expect.get("kernel", {}).get("cmdline", []):
        fix, title = f"add {word} to the kernel command line and reboot", f"kernel command line has {word}"
        yield Check("kernel.cmdline", ("kernel", "cmdline"), title, word, _has_word(word), fix, machine=True)
    for name, wanted in expect.get("gpu", {}).get("uvm", {}).items():
        title = f"{name} of the loaded nvidia-uvm"
        yield Check("gpu.uvm", ("gpu", "uvm", name), title, wanted, _contains(wanted), _UVM, machine=True)
    fabric = expect.get("fabric", {})
    for link in fabric.get("links", []):
        yield from _link_checks(link, fabric, probe)
    yield from _release_checks(expect)


def _fabric_problems(fabric: Mapping[str, Any]) -> list[str]:
    links = fabric.get("links", [])
    problems = [
        f"expect.fabric.links[{place}] is {link!r}, wanted a link of a fabric plan"
        for place, link in enumerate(links)
        if not isinstance(link, Mapping) or not {"interface", "address", "prefix", "cage", "hca"} <= set(link)
    ]
    # Without links nothing would be asked, and nothing asked looks like everything passed.
    return problems + [f"expect.fabric.{key} needs expect.fabric.links" for key in fabric if not links]


_MACHINE = {"machine": True}
_WARN = {"severity": "warn"}
_DEPLOY = "run the deploy playbook on all nodes; ranks with unequal hashes refuse to start"
_CLOCK = "enable time synchronisation; logs of several nodes cannot be compared otherwise"
_UVM = "build, sign and load the wanted nvidia-uvm, then reboot"
# Section and key of the expectation, id, path in the probe, title, fix, options of the row. All compare for equality.
_SCALARS: tuple[tuple[str, str, str, _Path, str, str, dict[str, Any]], ...] = (
    ("host", "architecture", "host.architecture", ("host", "architecture"), "architecture", "use other hardware", {}),
    ("host", "os_id", "host.os", ("host", "os", "id"), "operating system", "install the supported system", {}),
    ("host", "os_version", "host.os_version", ("host", "os", "version_id"), "system version", "upgrade it", _WARN),
    ("host", "clock_synchronized", "host.clock", ("host", "clock", "synchronized"), "clock in step", _CLOCK, _WARN),
    ("kernel", "release", "kernel.release", ("kernel", "release"), "kernel", "boot the pinned kernel", _MACHINE),
    (
        "kernel",
        "page_size",
        "kernel.page_size",
        ("kernel", "page_size"),
        "page size in bytes",
        "boot a kernel with pages of this size",
        _MACHINE,
    ),
    ("gpu", "driver", "gpu.driver", ("gpu", "driver"), "GPU driver", "install the pinned driver, reboot", _MACHINE),
    ("gpu", "names", "gpu.names", ("gpu", "names"), "GPUs", "check that the driver is loaded", _MACHINE),
    ("runtime", "release", "runtime.release", ("runtime", "release"), "installed release", _DEPLOY, {}),
    (
        "runtime",
        "group_hash",
        "runtime.group_hash",
        ("runtime", "group_hash"),
        "group hash",
        _DEPLOY,
        # Both come from one file, and the probe names its loss once.
        {"also": ("runtime.release",)},
    ),
)


def _minimums(expect: Mapping[str, Any]) -> Iterator[Check]:
    for key, check_id, path, title in (
        ("python_minimum", "host.python", ("host", "python"), "Python"),
        ("docker_minimum", "host.docker", ("host", "docker", "version"), "Docker"),
    ):
        least = expect.get("host", {}).get(key)
        if least is not None:
            yield Check(check_id, path, title, f"{least} or newer", _from_version(least), f"install {title} {least}")
    for key, check_id, fix in (
        ("available_bytes", "memory.available", "stop what holds memory, or wait until a stopped rank gave it back"),
        ("total_bytes", "memory.total", "this node has less memory than the profile needs: choose another profile"),
    ):
        least = expect.get("memory", {}).get(key)
        if least is not None:
            title = f"{key.removesuffix('_bytes')} memory in bytes"
            yield Check(check_id, ("host", "memory", key), title, f"{least} or more", _at_least(least), fix)
    for mount, least in expect.get("storage", {}).items():
        title, fix = f"free bytes at {mount}", f"make room at {mount}: prune old images and models"
        where = ("storage", "mounts", mount, "free_bytes")
        yield Check("storage.free", where, title, f"{least} or more", _at_least(least), fix)


def _link_checks(link: Mapping[str, Any], fabric: Mapping[str, Any], probe: Mapping[str, Any]) -> Iterator[Check]:
    name, hca, base = link["interface"], link["hca"], ("fabric", "interfaces", link["interface"])
    peer = f"{link.get('peer', 'the peer')} {link.get('peer_interface', '')}".strip()
    plug = f"plug the cable from cage {link['cage']} to {peer}, and reboot with it in"
    yield Check(
        "fabric.present",
        (*base, "present"),
        f"{name} is there",
        True,
        _same(True),
        f"without a live partner the NIC may be powered off: {plug}",
        absent_from=2,
    )
    if walk(probe, (*base, "present"), 2) in (None, False):
        return
    address, planned = f"{link['address']}/{link['prefix']}", "run the fabric playbook with fabric_allow_link_change"
    rows: list[tuple[str, str, Any, _Test, str, dict[str, Any]]] = [
        ("carrier", "carrier", True, _same(True), f"no light: {plug}", {}),
        ("cage", "phys_port_name", link["cage"], _same(link["cage"]), "the name belongs to another cage", _MACHINE),
        ("address", "addresses", [address], _same([address]), planned, {"also": ("fabric.addresses",)}),
    ]
    if "mtu" in fabric:
        rows.append(("mtu", "mtu", fabric["mtu"], _same(fabric["mtu"]), planned, {}))
    if "speed" in fabric:
        rows.append(("speed", "speed", fabric["speed"], _same(fabric["speed"]), f"reseat: {plug}", _MACHINE))
    for kind, key, wanted, test, fix, options in rows:
        yield Check(f"fabric.{kind}", (*base, key), f"{kind} of {name}", wanted, test, fix, **options)
    if fabric.get("rdma"):
        device = ("fabric", "hcas", hca)
        yield Check(
            "fabric.rdma",
            (*device, "port_state"),
            f"RDMA port of {hca}",
            "ACTIVE",
            _same("ACTIVE"),
            f"load mlx5_ib, or {plug}",
            machine=True,
            emulable=True,
            absent_from=2,
        )
        yield Check(
            "fabric.gid",
            (*device, "gids"),
            f"RoCE v2 GID of {link['address']} on {hca}",
            link["address"],
            lambda gids: any(_is_gid(gid, link["address"]) for gid in gids),
            f"the address is not on {name} or its port is not ACTIVE: {planned}",
            machine=True,
            emulable=True,
            absent_from=2,
            show=lambda gids: [f"{gid['index']} {gid['type']} {gid['gid']}" for gid in gids],
        )


def _release_checks(expect: Mapping[str, Any]) -> Iterator[Check]:
    for section, group, key, fix in (
        ("image", "images", "identity", "run the image playbook"),
        ("image", "images", "source_id", "run the image playbook: the source changed since the build"),
        ("model", "stores", "manifest", "run the model playbook"),
    ):
        wanted = expect.get(section, {}).get(key)
        if wanted is not None:
            yield Check(
                f"{section}.{key}",
                (section, group),
                f"{section} {key.replace('_', ' ')}",
                wanted,
                _lists(key, wanted),
                fix,
                also=(f"{section}.{key}",),
                show=_named(key),
            )
    active = expect.get("runtime", {}).get("active")
    if active is not None:
        for check_id, unit in UNITS.items():
            yield Check(
                check_id,
                ("runtime", "units", unit, "active"),
                f"{unit} runs" if active else f"{unit} is stopped",
                "active" if active else "not active",
                (lambda state: state == "active") if active else (lambda state: state in {"inactive", "failed"}),
                f"see journalctl -u {unit}, then run the deploy playbook" if active else "run the stop playbook",
                absent_from=2,
                absent_ok=not active,
            )


def _same(wanted: Any) -> _Test:
    return lambda seen: bool(type(seen) is type(wanted) and seen == wanted)


def _at_least(least: int) -> _Test:
    return lambda seen: bool(seen >= least)


def _from_version(least: str) -> _Test:
    return lambda seen: _version(seen) >= _version(least)


def _version(text: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _has_word(word: str) -> _Test:
    return lambda seen: word in seen.split()


def _contains(wanted: Any) -> _Test:
    if isinstance(wanted, Mapping):
        return lambda seen: isinstance(seen, Mapping) and all(seen.get(key) == wanted[key] for key in wanted)
    return _same(wanted)


def _lists(key: str, wanted: str) -> _Test:
    return lambda items: wanted in [item[key] for item in items]


def _named(key: str) -> Callable[[Any], Any]:
    return lambda items: [f"{item['name']} {item[key]}" for item in items] or "absent"


def _is_gid(gid: Mapping[str, Any], address: str) -> bool:
    return gid["type"] == "RoCE v2" and ipv4_of_gid(gid["gid"]) == address


def _hint(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
