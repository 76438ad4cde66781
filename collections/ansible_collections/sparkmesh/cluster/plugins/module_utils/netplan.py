"""Netplan text for one node's fabric links, and what other netplan files say about the same interfaces.

Only text and parsed files: nothing here changes a node. PyYAML is there wherever netplan is (netplan.io needs it).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

FABRIC_FILE = "/etc/netplan/60-sparkmesh-fabric.yaml"
DIRECTORIES = ("/lib/netplan", "/etc/netplan", "/run/netplan")
RENDERERS = ("networkd", "NetworkManager")
# Definition types whose members or underlay are named by these keys.
_STACKED = {"bonds": "interfaces", "bridges": "interfaces", "vlans": "link", "vrfs": "interfaces"}


class NetplanError(Exception):
    """A netplan file that cannot be used; the text names the file and the fix."""


@dataclass(frozen=True)
class Claim:
    """Another file that configures a fabric interface. ``key`` is its definition below ``ethernets``.

    ``exclusive`` tells that the definition is about this interface alone, so that it can be taken out.
    """

    path: str
    interface: str
    key: str
    exclusive: bool
    text: str


def render(links: Sequence[Mapping[str, Any]], mtu: int, renderer: str) -> str:
    """The netplan file for the links of one plan node, sorted by interface; deterministic text.

    The renderer stands at each interface: at the top it would also move the management interface.
    ``link-local: []`` keeps the GID table short, ``optional`` keeps an unplugged cable from holding up the boot.
    """
    lines = [
        "# Written by sparkmesh (fabric_links) from the fabric plan; change the plan, not this file.",
        "network:",
        "  version: 2",
        "  ethernets:",
    ]
    for link in sorted(links, key=lambda item: str(item["interface"])):
        lines += [
            f"    {link['interface']}:",
            f"      # {link['cable']} lane {link['lane']}, peer {link['peer']} {link['peer_interface']}",
            f"      renderer: {renderer}",
            "      dhcp4: false",
            "      dhcp6: false",
            "      accept-ra: false",
            "      link-local: []",
            "      optional: true",
            f"      mtu: {mtu}",
            f"      addresses: [{link['address']}/{link['prefix']}]",
        ]
    return "\n".join(lines) + "\n"


def read_all(root: Path) -> dict[str, dict[str, Any]]:
    """The ``network`` mapping of every netplan file of a node, by path, ours left out."""
    found = {}
    for directory in DIRECTORIES:
        for file in sorted((root / directory.lstrip("/")).glob("*.yaml")):
            path = f"{directory}/{file.name}"
            if path != FABRIC_FILE:
                found[path] = network_of(file.read_text(encoding="utf-8", errors="replace"), path)
    return found


def network_of(text: str, path: str) -> dict[str, Any]:
    """The ``network`` mapping of a file's text; raises ``NetplanError`` when it is not YAML of that shape."""
    yaml = _yaml()
    try:
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as problem:
        raise NetplanError(f"{path} is no YAML ({problem}); repair it, netplan would refuse it too") from problem
    network = document.get("network") if isinstance(document, dict) else None
    if network is None:
        return {}
    if not isinstance(network, dict):
        raise NetplanError(f"{path}: `network` is {type(network).__name__}, wanted a mapping")
    return network


def found_renderer(networks: Mapping[str, Mapping[str, Any]]) -> str:
    """The renderer the node's own files choose (the last file by name wins, as in netplan), else networkd."""
    chosen = "networkd"
    for path in sorted(networks, key=lambda item: item.rsplit("/", 1)[1]):
        chosen = str(networks[path].get("renderer") or chosen)
    return chosen


def claims_of(
    networks: Mapping[str, Mapping[str, Any]],
    interfaces: Iterable[str],
    macs: Mapping[str, str],
    drivers: Mapping[str, str],
) -> list[Claim]:
    """Every definition in another file that touches one of the fabric interfaces."""
    wanted = list(interfaces)
    claims = []
    for path, network in networks.items():
        for key, body in (network.get("ethernets") or {}).items():
            for interface in wanted:
                hit = _claims(str(key), body or {}, interface, macs.get(interface), drivers.get(interface))
                if hit is not None:
                    text = f"{path}: ethernets.{key} configures {interface}"
                    claims.append(Claim(path, interface, str(key), hit, text))
        for kind, member_key in _STACKED.items():
            for key, body in (network.get(kind) or {}).items():
                members = (body or {}).get(member_key) or []
                for interface in wanted:
                    if interface in ([members] if isinstance(members, str) else members):
                        claims.append(
                            Claim(path, interface, str(key), False, f"{path}: {kind}.{key} is built on {interface}")
                        )
    return claims


def without(text: str, path: str, keys: Iterable[str]) -> str:
    """The file's text without the given definitions below ``ethernets``. Comments are lost; the backup has them."""
    network = network_of(text, path)
    ethernets = {key: body for key, body in network["ethernets"].items() if str(key) not in set(keys)}
    kept = {name: value for name, value in network.items() if name != "ethernets"}
    if ethernets:
        kept["ethernets"] = ethernets
    return str(_yaml().safe_dump({"network": kept}, sort_keys=False, default_flow_style=False))


def _claims(key: str, body: Mapping[str, Any], interface: str, mac: str | None, driver: str | None) -> bool | None:
    """None: not about the interface. True: about it alone. False: about it and perhaps others."""
    match = body.get("match") or {}
    if not match:
        return True if key == interface else None
    own_mac = bool(mac) and str(match.get("macaddress", "")).lower() == str(mac).lower()
    if own_mac or interface in (body.get("set-name"), match.get("name")):
        return True
    # All given properties must match; what is not given matches everything.
    drivers = match.get("driver", "*")
    globs = [drivers] if isinstance(drivers, str) else drivers
    touched = (
        "macaddress" not in match
        and fnmatchcase(interface, str(match.get("name", "*")))
        and any(fnmatchcase(driver or "", str(glob)) for glob in globs)
    )
    return False if touched else None


def _yaml() -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError as problem:
        raise NetplanError(
            "PyYAML is not installed for this Python; install python3-yaml (netplan.io needs it too)"
        ) from problem
