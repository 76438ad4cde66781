"""Proof that every fabric link carries jumbo frames from its own interface to the wanted peer, and only there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import (
    CommandFailed,
    Reader,
    Result,
    Runner,
    run,
)

_IP_AND_ICMP_HEADERS = 28


def prove(links: Sequence[Mapping[str, Any]], mtu: int, reader: Reader, runner: Runner = run) -> list[dict[str, Any]]:
    """Prove all links at once; one ``{cable, lane, interface, peer, status, ok, seen, wanted, fix}`` a link.

    ``status`` is ok or fail. A link may carry ``peer_mac``; then the neighbour must answer from that one.
    """
    with ThreadPoolExecutor(max_workers=max(len(links), 1)) as pool:
        faults = list(pool.map(lambda link: _fault(link, mtu, reader, runner), links))
    neighbours = {str(link["interface"]): _neighbours(str(link["interface"]), runner) for link in links}
    macs = [_mac(link, neighbours) for link in links]
    shared = {mac for mac, times in Counter(mac for mac in macs if mac).items() if times > 1}
    return [
        _verdict(link, mtu, fault or _mac_fault(link, mac, shared), mac)
        for link, fault, mac in zip(links, faults, macs, strict=True)
    ]


def unobserved(links: Sequence[Mapping[str, Any]], mtu: int, why: str) -> list[dict[str, Any]]:
    """The same shape for links that could not be proved now; ``ok`` is None."""
    return [
        {**_subject(link), "status": "unobserved", "ok": None, "seen": why, "wanted": _wanted(link, mtu),
         "fix": "apply the fabric plan, then prove again"}
        for link in links
    ]  # fmt: skip


def _subject(link: Mapping[str, Any]) -> dict[str, Any]:
    return {key: link[key] for key in ("cable", "lane", "interface", "peer", "peer_address")}


def _wanted(link: Mapping[str, Any], mtu: int) -> str:
    return (
        f"{mtu - _IP_AND_ICMP_HEADERS} bytes unfragmented from {link['interface']} ({link['address']}) to "
        f"{link['peer']} {link['peer_interface']} ({link['peer_address']}), routed directly"
    )


def _verdict(link: Mapping[str, Any], mtu: int, fault: tuple[str, str] | None, mac: str | None) -> dict[str, Any]:
    seen, fix = fault or (f"2 of 2 jumbo pings answered, direct route, neighbour {mac}", "")
    return {
        **_subject(link),
        "status": "fail" if fault else "ok",
        "ok": fault is None,
        "seen": seen,
        "wanted": _wanted(link, mtu),
        "fix": fix,
    }


def _fault(link: Mapping[str, Any], mtu: int, reader: Reader, runner: Runner) -> tuple[str, str] | None:
    """What is wrong with one link and the fix, from the outermost cause inwards; None when it carries."""
    return _local_fault(link, mtu, reader, runner) or _path_fault(link, mtu, runner)


def _local_fault(link: Mapping[str, Any], mtu: int, reader: Reader, runner: Runner) -> tuple[str, str] | None:
    interface, peer = str(link["interface"]), str(link["peer_address"])
    base = f"/sys/class/net/{interface}"
    place = f"cage {link['cage']} (cable {link['cable']})"
    if not reader.exists(base):
        return f"there is no interface {interface}", f"check the cable in {place}; an unplugged cage can lose its NIC"
    if reader.text(f"{base}/carrier", absent_ok=True) != "1":
        return f"{interface} has no carrier", f"plug the cable into {place} at both ends; is {link['peer']} powered?"
    live_mtu = reader.number(f"{base}/mtu", absent_ok=True)
    if live_mtu != mtu:
        return f"{interface} has MTU {live_mtu}", f"apply the fabric plan here (MTU {mtu})"
    routed = _route_fault(interface, peer, runner)
    if routed:
        return routed, f"remove the route or address that takes {peer} off {interface}, or apply the fabric plan"
    return None


def _path_fault(link: Mapping[str, Any], mtu: int, runner: Runner) -> tuple[str, str] | None:
    interface, peer = str(link["interface"]), str(link["peer_address"])
    jumbo = _ping(interface, peer, mtu - _IP_AND_ICMP_HEADERS, runner)
    if isinstance(jumbo, str):
        return jumbo, "install iputils-ping" if "not installed" in jumbo else "prove again"
    if _all_answered(jumbo):
        return None
    small = _ping(interface, peer, 56, runner)
    if not isinstance(small, str) and _all_answered(small):
        return (
            f"small pings answered, {mtu - _IP_AND_ICMP_HEADERS} byte pings not: {jumbo.complaint()}",
            f"set MTU {mtu} on {link['peer']} {link['peer_interface']} (apply the fabric plan there)",
        )
    return (
        f"{peer} does not answer on {interface}: {_loss(jumbo)}",
        f"apply the fabric plan on {link['peer']}; if it is applied, the cable {link['cable']} leads somewhere else",
    )


def _route_fault(interface: str, peer: str, runner: Runner) -> str:
    try:
        route = json.loads(runner(["ip", "-j", "-4", "route", "get", peer], timeout=10.0).out)[0]
    except CommandFailed as problem:
        return f"no route to {peer}: {problem}"
    except (ValueError, IndexError, TypeError):
        return f"the route to {peer} could not be read"
    if route.get("dev") != interface:
        return f"{peer} is routed over {route.get('dev')}"
    if route.get("gateway"):
        return f"{peer} is routed over {interface} through gateway {route['gateway']}"
    return ""


def _ping(interface: str, peer: str, size: int, runner: Runner) -> Result | str:
    argv = ["ping", "-n", "-c2", "-i0.2", "-W2", "-I", interface, "-M", "do", "-s", str(size), peer]
    try:
        return runner(argv, check=False, timeout=15.0)
    except CommandFailed as problem:
        return str(problem)


def _all_answered(ping: Result) -> bool:
    # The exit status is 0 already when one of two came back.
    return ping.rc == 0 and " 0% packet loss" in ping.out


def _loss(ping: Result) -> str:
    return next((line.strip() for line in ping.out.splitlines() if "packet loss" in line), ping.complaint())


def _neighbours(interface: str, runner: Runner) -> dict[str, str]:
    """MAC by address as the interface knows them. Asked by ``dev``, the answer may lack the key ``dev``."""
    try:
        listed = json.loads(runner(["ip", "-j", "-4", "neigh", "show", "dev", interface], timeout=10.0).out or "[]")
    except (CommandFailed, ValueError):
        return {}
    return {entry["dst"]: entry["lladdr"] for entry in listed if "dst" in entry and "lladdr" in entry}


def _mac(link: Mapping[str, Any], neighbours: Mapping[str, Mapping[str, str]]) -> str | None:
    return neighbours[str(link["interface"])].get(str(link["peer_address"]))


def _mac_fault(link: Mapping[str, Any], mac: str | None, shared: set[str]) -> tuple[str, str] | None:
    peer = f"{link['peer']} {link['peer_interface']}"
    if mac is None:
        return f"{link['interface']} knows no neighbour {link['peer_address']}", f"look at `ip neigh` for {peer}"
    wanted = link.get("peer_mac")
    if wanted and mac.lower() != str(wanted).lower():
        return f"neighbour {mac} answers, wanted {wanted}", f"the other lane answers for {peer}: set arp_ignore=1 there"
    if mac in shared:
        return f"neighbour {mac} answers on more than one link", f"one port answers for two: set arp_ignore=1 on {peer}"
    return None
