"""Probe section ``fabric``: network interfaces, RoCE devices and their GIDs, from sysfs.

Function number and ``phys_port_name`` tell the cage, the PCI domain tells the lane; names here are the stock ones of
DGX OS (fabric_plan uses the same).
"""

from __future__ import annotations

import importlib
import ipaddress
import json
import re
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import Reader

SPARK_INTERFACES = ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1")
# Interfaces that containers and their engines make; none of them can carry a fabric cable.
_NOT_A_PORT = ("lo", "veth", "docker", "br-", "virbr")
_RTF_UP = 0x1
_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def read_fabric(reader: Reader) -> dict[str, Any]:
    """``{interfaces: {name: {...}}, hcas: {hca: {port_state, gids}}, default_interface}``.

    The four Spark interfaces are always listed, absent ones with ``present: False``. ``speed`` is in Mb/s and None
    while the link is down; ``addresses`` is None when they could not be read.
    """
    listed = reader.names("/sys/class/net", "fabric.interfaces")
    names = [name for name in listed if not name.startswith(_NOT_A_PORT) or name in SPARK_INTERFACES]
    addresses = read_addresses(reader)
    interfaces = {
        name: _interface(reader, name, addresses) for name in [*names, *(n for n in SPARK_INTERFACES if n not in names)]
    }
    return {
        "interfaces": interfaces,
        "hcas": {hca: _hca(reader, hca) for hca in reader.names("/sys/class/infiniband", "fabric.hcas")},
        "default_interface": default_interface(reader),
    }


def read_addresses(reader: Reader) -> dict[str, list[str]] | None:
    """IPv4 addresses with prefix length by interface ("10.20.8.11/24"), or None when they could not be read."""
    text = reader.command("ip-addr", ["ip", "-j", "-4", "addr", "show"], "fabric.addresses")
    if text is None:
        return None
    try:
        listed = json.loads(text or "[]")
    except ValueError:
        reader.miss("fabric.addresses")
        return None
    return {
        entry["ifname"]: [f"{item['local']}/{item['prefixlen']}" for item in entry.get("addr_info", [])]
        for entry in listed
        if "ifname" in entry
    }


def default_interface(reader: Reader) -> str | None:
    """The interface of the IPv4 default route with the lowest metric, or None when there is no such route."""
    best: tuple[int, str] | None = None
    for line in (reader.text("/proc/net/route", "fabric.default_interface") or "").splitlines()[1:]:
        field = line.split()
        if len(field) >= 8 and field[1] == "00000000" and field[7] == "00000000" and int(field[3], 16) & _RTF_UP:
            candidate = (int(field[6]), field[0])
            best = candidate if best is None else min(best, candidate)
    return best[1] if best else None


def ipv4_of_gid(gid: str) -> str | None:
    """The IPv4 address mapped into a GID ("0000:...:ffff:c0a8:640a" → "192.168.100.10"), or None."""
    try:
        mapped = ipaddress.IPv6Address(gid).ipv4_mapped
    except ValueError:
        return None
    return str(mapped) if mapped else None


def _interface(reader: Reader, name: str, addresses: dict[str, list[str]] | None) -> dict[str, Any]:
    base = f"/sys/class/net/{name}"
    if not reader.exists(base):
        return {
            "present": False, "carrier": None, "speed": None, "mtu": None, "operstate": None, "mac": None,
            "addresses": [], "phys_port_name": None, "driver": None, "pci": None,
        }  # fmt: skip
    operstate = reader.text(f"{base}/operstate", f"fabric.interfaces.{name}.operstate")
    carrier = reader.number(f"{base}/carrier", f"fabric.interfaces.{name}.carrier", absent_ok=operstate == "down")
    speed = reader.number(f"{base}/speed", absent_ok=True)
    driver, pci = _device(reader, name)
    if addresses is None:
        reader.miss(f"fabric.interfaces.{name}.addresses")
    return {
        "present": True,
        # The kernel refuses to say (EINVAL) while the interface is administratively down: then there is none.
        "carrier": bool(carrier) if carrier is not None or operstate == "down" else None,
        "speed": speed if speed is not None and speed > 0 else None,
        "mtu": reader.number(f"{base}/mtu", f"fabric.interfaces.{name}.mtu"),
        "operstate": operstate,
        "mac": reader.text(f"{base}/address", f"fabric.interfaces.{name}.mac"),
        "addresses": None if addresses is None else addresses.get(name, []),
        "phys_port_name": reader.text(f"{base}/phys_port_name", absent_ok=True) or None,
        "driver": driver,
        "pci": pci,
    }


def _device(reader: Reader, name: str) -> tuple[str | None, str | None]:
    """Driver and PCI address; udev knows the PCI parent also where the device link points at something between."""
    if reader.live:
        try:
            pyudev = importlib.import_module("pyudev")
            parent = pyudev.Devices.from_name(pyudev.Context(), "net", name).find_parent("pci")
            if parent is not None:
                return parent.driver, parent.sys_name
        except Exception:  # pyudev is optional and raises types of its own; sysfs answers below
            pass
    base = f"/sys/class/net/{name}/device"
    parent_name = reader.link(base)
    return reader.link(f"{base}/driver"), parent_name if parent_name and _PCI.fullmatch(parent_name) else None


def _hca(reader: Reader, hca: str) -> dict[str, Any]:
    port = f"/sys/class/infiniband/{hca}/ports/1"
    key = f"fabric.hcas.{hca}"
    state = reader.text(f"{port}/state", f"{key}.port_state")
    return {
        # "4: ACTIVE": the number is the verbs enum, the word is what people search for.
        "port_state": state.partition(":")[2].strip() or state if state else None,
        "gids": _gids(reader, port, f"{key}.gids"),
    }


def _gids(reader: Reader, port: str, key: str) -> list[dict[str, Any]]:
    """The filled GID slots in index order. An empty slot is all zeros, whatever its type says, or has no type."""
    found = []
    for index in reader.names(f"{port}/gids", key):
        gid = reader.text(f"{port}/gids/{index}", f"{key}.{index}", absent_ok=True)
        kind = reader.text(f"{port}/gid_attrs/types/{index}", f"{key}.{index}", absent_ok=True)
        if not gid or gid == _EMPTY_GID or not kind:
            continue
        netdev = reader.text(f"{port}/gid_attrs/ndevs/{index}", f"{key}.{index}", absent_ok=True)
        found.append({"index": int(index), "type": kind, "gid": gid, "netdev": netdev})
    return found
