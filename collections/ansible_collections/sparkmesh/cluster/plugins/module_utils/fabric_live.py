"""The live side of fabric links: what interfaces have now, why one must not be touched, and small corrections."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.probe_fabric import SPARK_INTERFACES
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import Reader, Runner

_POLL_SECONDS = 0.25
_VLANS = "/proc/net/vlan"


@dataclass(frozen=True)
class Port:
    """One interface now: global IPv4 addresses with prefix, MTU, administratively up, carrier."""

    addresses: frozenset[str]
    mtu: int
    up: bool
    carrier: bool


def ports(runner: Runner) -> dict[str, Port]:
    """Every interface of the node; raises ``CommandFailed``."""
    listed = json.loads(runner(["ip", "-j", "-4", "addr", "show"], timeout=10.0).out or "[]")
    # `ip -4 addr show` leaves out interfaces without an IPv4 address, but a missing address is what we look for.
    links = json.loads(runner(["ip", "-j", "link", "show"], timeout=10.0).out or "[]")
    addresses = {
        entry["ifname"]: frozenset(
            f"{item['local']}/{item['prefixlen']}" for item in entry.get("addr_info", []) if item["scope"] == "global"
        )
        for entry in listed
        if "ifname" in entry
    }
    return {
        link["ifname"]: Port(
            addresses.get(link["ifname"], frozenset()), link["mtu"], "UP" in link["flags"], "LOWER_UP" in link["flags"]
        )
        for link in links
    }


def deviations(wanted: Mapping[str, str], mtu: int, now: Mapping[str, Port]) -> tuple[list[str], list[str]]:
    """(faults, waiting) of the plan's interfaces; ``wanted`` is address/prefix by interface.

    networkd gives an interface its address only with a carrier: without one that is waiting for a cable, no fault.
    """
    faults, waiting = [], []
    for name, address in wanted.items():
        port = now.get(name)
        if port is None:
            faults.append(f"{name} is gone, wanted {address}")
            continue
        if not port.up:
            faults.append(f"{name} is down, wanted up with {address}")
            continue
        if port.mtu != mtu:
            faults.append(f"{name} has MTU {port.mtu}, wanted {mtu}")
        if port.addresses != {address}:
            seen = ", ".join(sorted(port.addresses)) or "no address"
            if port.carrier or port.addresses:
                faults.append(f"{name} has {seen}, wanted {address} alone")
            else:
                waiting.append(f"{name} has no carrier and gets {address} when its cable is in")
    return faults, waiting


def await_plan(
    wanted: Mapping[str, str],
    mtu: int,
    keep: Mapping[str, frozenset[str]],
    *,
    runner: Runner,
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[str], list[str]]:
    """Wait up to ``timeout`` s until the interfaces are as wanted and those in ``keep`` have their addresses."""
    deadline = clock() + timeout
    while True:
        now = ports(runner)
        faults, waiting = deviations(wanted, mtu, now)
        for name, addresses in keep.items():
            left = now[name].addresses if name in now else frozenset()
            if not addresses <= left:
                faults.append(f"management interface {name} has lost {', '.join(sorted(addresses - left))}")
        if not (faults or waiting) or clock() >= deadline:
            return faults, waiting
        time.sleep(_POLL_SECONDS)


def correct(
    addresses: Mapping[str, Collection[str]], mtus: Mapping[str, int], runner: Runner, *, add: bool = False
) -> list[str]:
    """Take away addresses that are not wanted and set MTUs; with ``add`` also give back missing ones.

    Applying a plan never adds: an address that netplan does not bring would be gone after the next boot.
    """
    done = []
    now = ports(runner)
    for name, wanted in addresses.items():
        if name not in now:
            continue
        for address in sorted(now[name].addresses - set(wanted)):
            runner(["ip", "address", "del", address, "dev", name], timeout=10.0)
            done.append(f"removed {address} from {name}")
        if name in mtus and now[name].mtu != mtus[name]:
            runner(["ip", "link", "set", "dev", name, "mtu", str(mtus[name])], timeout=10.0)
            done.append(f"set MTU of {name} back to {mtus[name]}")
        if add:
            for address in sorted(set(wanted) - now[name].addresses):
                runner(["ip", "address", "add", address, "dev", name], timeout=10.0)
                done.append(f"gave {address} back to {name}")
    return done


def refusals(
    links: Sequence[Mapping[str, Any]],
    reader: Reader,
    now: Mapping[str, Port],
    guarded: Mapping[str, str],
    ours: Collection[str],
) -> list[str]:
    """Why the links must not be configured; empty when they may.

    ``guarded`` is reason by interface. An address on an interface of ``ours`` may move: its cable did.
    """
    reasons = []
    for link in links:
        name = str(link["interface"])
        place = f"{name} (cage {link['cage']}, lane {link['lane']}, cable {link['cable']})"
        base = f"/sys/class/net/{name}"
        if not reader.exists(base):
            reasons.append(
                f"there is no interface {place}; found {_found(reader)}. Check that the cable is in this cage at both "
                "ends and reboot with it in: with hot-plug power saving an unplugged cage loses its NIC"
            )
            continue
        if name in guarded:
            reasons.append(f"{place} {guarded[name]}; move management to another port or correct the cabling")
        if reader.exists(f"{_VLANS}/{name}"):
            reasons.append(f"{place} is a VLAN; the fabric needs the port itself. Remove the VLAN")
        for upper in (entry.removeprefix("upper_") for entry in reader.names(base) if entry.startswith("upper_")):
            reasons.append(
                f"{place} is part of {upper}; RDMA goes past bonds, bridges and VLANs. Take it out of {upper}"
            )
        address = f"{link['address']}/{link['prefix']}"
        for other, port in now.items():
            if other not in ours and address in port.addresses:
                reasons.append(f"{address} of {place} is on {other} already; remove it there or change the pool")
    return reasons


def guarded_interfaces(reader: Reader, now: Mapping[str, Port], management_address: str | None) -> dict[str, str]:
    """Interfaces that carry the way in: default routes, the SSH connection, the management address."""
    guarded = {}
    for line in (reader.text("/proc/net/route") or "").splitlines()[1:]:
        field = line.split()
        if len(field) >= 8 and field[1] == field[7] == "00000000":
            guarded[field[0]] = "carries the default route"
    here = dict.fromkeys(_ssh_server_addresses(reader), "carries this SSH connection")
    if management_address:
        here[management_address] = "carries the management address"
    for name, port in now.items():
        for address in port.addresses:
            if address.split("/")[0] in here:
                guarded[name] = here[address.split("/")[0]]
    return guarded


def _ssh_server_addresses(reader: Reader) -> set[str]:
    """Our end of the SSH connection we run under; sudo drops the variable, so the ancestors are asked."""
    found = set()
    pid = os.getpid() if reader.live else 0
    while pid > 1:
        for entry in (reader.text(f"/proc/{pid}/environ") or "").split("\x00"):
            # "client address, client port, server address, server port", see ssh(1).
            if entry.startswith("SSH_CONNECTION=") and len(entry.split()) == 4:
                found.add(entry.split()[2])
        status = (reader.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
        pid = int(status[1]) if len(status) > 1 else 0
    return found


def _found(reader: Reader) -> str:
    names = [name for name in reader.names("/sys/class/net") if name in SPARK_INTERFACES]
    seen = []
    for name in names:
        cage = reader.text(f"/sys/class/net/{name}/phys_port_name", absent_ok=True) or "unnamed cage"
        carrier = reader.text(f"/sys/class/net/{name}/carrier", absent_ok=True) == "1"
        seen.append(f"{name} ({cage}, {'carrier' if carrier else 'no carrier'})")
    return ", ".join(seen) or "no fabric interface at all"
