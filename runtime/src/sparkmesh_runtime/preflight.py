"""What may have moved since the spec was rendered is proved again on the rank, before vLLM starts.

Every check yields one line. "unobserved" is never "ok": it is reported, and fails where the spec relies on it.
"""

from __future__ import annotations

import array
import errno
import fcntl
import ipaddress
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparkmesh_runtime.spec import Spec

Status = Literal["ok", "fail", "unobserved"]
IDENTITY_VARIABLE = "SPARKMESH_IMAGE_IDENTITY"
# From <linux/sockios.h>; struct ifreq is 40 bytes on 64-bit Linux, the only kind a Spark or its lab runs.
SIOCGIFCONF, IFREQ_BYTES = 0x8912, 40


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    status: Status
    seen: str
    wanted: str
    fix: str = ""

    def line(self) -> str:
        """One line for the log; the fix is named only when something is to be fixed."""
        text = f"{self.status:<10} {self.name}: seen {self.seen}, wanted {self.wanted}"
        return f"{text}; fix: {self.fix}" if self.status == "fail" and self.fix else text


def interface_addresses() -> dict[str, set[str]]:
    """Every IPv4 address of this network namespace by interface, asked of the kernel (the image has no iproute2)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        buffer = array.array("B", bytes(256 * IFREQ_BYTES))
        request = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
        used = struct.unpack("iP", fcntl.ioctl(probe.fileno(), SIOCGIFCONF, request))[0]
    found: dict[str, set[str]] = {}
    for start in range(0, used, IFREQ_BYTES):
        # An alias shows up under its label, "eth0:1"; the interface is what stands before the colon.
        name = bytes(buffer[start : start + 16]).split(b"\0", 1)[0].decode().split(":", 1)[0]
        found.setdefault(name, set()).add(socket.inet_ntoa(bytes(buffer[start + 20 : start + 24])))
    return found


def can_bind(host: str, port: int) -> str:
    """Empty when `host:port` can be bound, else the reason. SO_REUSEADDR, as vLLM's own listeners set it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, str(error))
    return ""


@dataclass(frozen=True)
class Node:
    """Where the checks look. Tests hand in another root and other answers from the kernel."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    addresses: Callable[[], dict[str, set[str]]] = interface_addresses
    bind: Callable[[str, int], str] = can_bind

    def read(self, path: str) -> str | None:
        """The stripped text of a file, None when it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None


def run(spec: Spec, node: Node) -> list[Check]:
    """Every check for this rank, in the order in which a person would debug them."""
    return [*_image(spec, node), *_memory(spec, node), *_fabric(spec, node), *_model(spec, node), *_ports(spec, node)]


def _judge(name: str, seen: object, wanted: object, fix: str) -> Check:
    return Check(name, "ok" if seen == wanted else "fail", str(seen), str(wanted), fix)


def _image(spec: Spec, node: Node) -> Iterator[Check]:
    yield _judge(
        "image.identity",
        node.environment.get(IDENTITY_VARIABLE),
        spec["image"]["identity"],
        "install the rank again, so that its unit and its spec name one image",
    )


def _memory(spec: Spec, node: Node) -> Iterator[Check]:
    floor = spec["guard"]["start_floor_bytes"]
    seen = mem_available(node.read("/proc/meminfo") or "")
    yield Check(
        "memory.available",
        "ok" if seen is not None and seen >= floor else "fail",
        "unreadable" if seen is None else f"{seen} bytes",
        f"at least {floor} bytes",
        "stop what else uses memory on this node",
    )


def mem_available(meminfo: str) -> int | None:
    """MemAvailable of /proc/meminfo text in bytes, None when it is not there."""
    for line in meminfo.splitlines():
        key, _, rest = line.partition(":")
        if key == "MemAvailable" and rest.split()[:1] and rest.split()[0].isdigit():
            return int(rest.split()[0]) * 1024
    return None


def _fabric(spec: Spec, node: Node) -> Iterator[Check]:
    links = spec["fabric"]["links"]
    addresses = node.addresses() if links else {}
    for link in links:
        name, address, peer = link["interface"], link["address"], link["peer"]
        held = [interface for interface, owned in sorted(addresses.items()) if address in owned]
        yield _judge(
            f"fabric.address {name}",
            ", ".join(held) or "no interface has it",
            name,
            f"the cable to {peer} needs {address} on {name}: run the fabric play",
        )
        mtu = node.read(f"/sys/class/net/{name}/mtu")
        yield _judge(
            f"fabric.mtu {name}",
            mtu or "no such interface",
            str(spec["fabric"]["mtu"]),
            f"the cable to {peer}: run the fabric play",
        )
        yield _gid(spec, node, link)


def _gid(spec: Spec, node: Node, link: Mapping[str, str]) -> Check:
    """The RoCE v2 GID of the link's address. Its index moves when a peer's link flaps, so it is found by address."""
    environment = {**spec["environment"], **spec.get("node_environment", {})}
    name, wanted = f"fabric.gid {link['hca'] or link['interface']}", f"a RoCE v2 GID of {link['address']}"
    fix = f"bring up {link['interface']} with {link['address']} before the start, then run the fabric check"
    port = f"/sys/class/infiniband/{link['hca']}/ports/1"
    if not link["hca"] or not (node.root / port.lstrip("/")).is_dir():
        relied_on = any(key.startswith("NCCL_IB") for key in environment) and environment.get("NCCL_IB_DISABLE") != "1"
        return Check(
            name,
            "fail" if relied_on else "unobserved",
            "no RDMA device",
            wanted,
            "the spec sets NCCL_IB…: pass /dev/infiniband into the container, or set NCCL_IB_DISABLE=1",
        )
    gid = ipaddress.IPv6Address(f"::ffff:{link['address']}")
    indexes = []
    for entry in (node.root / port.lstrip("/") / "gids").glob("*"):
        text, kind = node.read(f"{port}/gids/{entry.name}"), node.read(f"{port}/gid_attrs/types/{entry.name}")
        if text and kind == "RoCE v2" and ipaddress.IPv6Address(text) == gid:
            indexes.append(entry.name)
    pinned = environment.get("NCCL_IB_GID_INDEX")
    if pinned is not None and indexes and pinned not in indexes:
        return Check(
            name,
            "fail",
            f"index {', '.join(sorted(indexes))}",
            f"{wanted} at index {pinned}",
            "remove NCCL_IB_GID_INDEX from the environment: NCCL finds it by address",
        )
    seen = f"index {', '.join(sorted(indexes))}" if indexes else "none"
    return Check(name, "ok" if indexes else "fail", seen, wanted, fix)


def _model(spec: Spec, node: Node) -> Iterator[Check]:
    path, fix = spec["model"]["path"], "run the model play, then install the rank again"
    text = node.read(f"{path}/.sparkmesh/manifest.json")
    try:
        manifest = json.loads(text or "")
        digest, files = manifest["manifest"], dict(_sizes(manifest["files"]))
    except (ValueError, TypeError, KeyError) as error:
        seen = "no manifest" if text is None else f"an unusable manifest ({type(error).__name__}: {error})"
        yield Check("model.manifest", "fail", seen, spec["model"]["manifest"], fix)
        return
    yield _judge("model.manifest", digest, spec["model"]["manifest"], fix)
    found = {name: _size(node.root / path.lstrip("/") / name) for name in files}
    wrong = [f"{name} {found[name]}, wanted {size}" for name, size in sorted(files.items()) if found[name] != size]
    complete = bool(files) and not wrong
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    yield Check(
        "model.files",
        "ok" if complete else "fail",
        "; ".join(wrong[:5]) + more or f"{len(files)} files",
        f"{len(files)} files with their sizes" if files else "at least one file",
        fix,
    )


def _sizes(files: Any) -> Iterator[tuple[str, int]]:
    """(name, bytes) of a manifest's files, written as a list of objects or as an object by name."""
    entries = ((entry["path"], entry) for entry in files) if isinstance(files, list) else files.items()
    for name, entry in entries:
        yield name, int(entry["size"])


def _size(path: Path) -> int | str:
    try:
        return path.stat().st_size
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "unreadable")


def _ports(spec: Spec, node: Node) -> Iterator[Check]:
    if spec["rank"] != 0:
        return
    port, address = spec["head"]["master_port"], spec["head"]["address"]
    low = (node.read("/proc/sys/net/ipv4/ip_local_port_range") or "").split()[:1]
    below = bool(low) and port < int(low[0])
    yield Check(
        "port.range",
        "ok" if below else "fail" if low else "unobserved",
        str(port),
        f"below the ephemeral range, {low[0] if low else 'unreadable'}",
        "choose a lower master port: an outgoing connection may hold this one",
    )
    for name, host, number in (("port.master", address, port), ("port.api", spec["api"]["host"], spec["api"]["port"])):
        yield _judge(
            f"{name} {host}:{number}",
            node.bind(host, number) or "free",
            "free",
            "EADDRINUSE: stop the other process; EADDRNOTAVAIL: this node does not own the address",
        )
