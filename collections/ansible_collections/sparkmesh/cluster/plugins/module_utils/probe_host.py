"""Probe sections ``host`` and ``kernel``: who the node is and what it runs on."""

from __future__ import annotations

import os
import platform
import re
import shlex
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import Reader, container_of


def read_host(reader: Reader) -> dict[str, Any]:
    """``{hostname, architecture, os, container, python, memory, boot_id, uptime_s, docker, clock,
    reboot_reasons}``.

    ``container`` is the kind of container or False; ``docker`` is None when no Docker is installed.
    """
    return {
        "hostname": reader.text("/proc/sys/kernel/hostname", "host.hostname"),
        "architecture": _architecture(reader),
        "os": _os_release(reader),
        "container": container_of(reader) or False,
        "python": platform.python_version() if reader.live else reader.text("commands/python.txt", "host.python"),
        "memory": _memory(reader),
        "boot_id": reader.text("/proc/sys/kernel/random/boot_id", "host.boot_id"),
        "uptime_s": _uptime(reader),
        "docker": _docker(reader),
        "clock": {"synchronized": _synchronized(reader)},
        "reboot_reasons": _reboot_reasons(reader),
    }


def read_kernel(reader: Reader) -> dict[str, Any]:
    """``{release, page_size, cmdline}``; the page size is in bytes."""
    return {
        "release": reader.text("/proc/sys/kernel/osrelease", "kernel.release"),
        "page_size": _page_size(reader),
        "cmdline": reader.text("/proc/cmdline", "kernel.cmdline"),
    }


def _architecture(reader: Reader) -> str | None:
    if reader.live:
        return os.uname().machine
    return (reader.command("uname", ["uname", "-m"], "host.architecture") or "").strip() or None


# Both lie in /run, so a reboot clears them. The first is Debian's and Ubuntu's own, the second is for our roles.
REBOOT_FILES = ("/run/reboot-required.pkgs", "/run/sparkmesh/reboot-reasons")


def _reboot_reasons(reader: Reader) -> list[str]:
    """One reason a line, in words; a package that asked for a reboot is named."""
    packages, ours = (
        (reader.text(path, "host.reboot_reasons", absent_ok=True) or "").splitlines() for path in REBOOT_FILES
    )
    return [f"package {name} asks for it" for name in dict.fromkeys(packages) if name] + [line for line in ours if line]


def _page_size(reader: Reader) -> int | None:
    if reader.live:
        return os.sysconf("SC_PAGE_SIZE")
    return reader.number("commands/getconf.txt", "kernel.page_size")


def _os_release(reader: Reader) -> dict[str, str | None]:
    text = reader.text("/etc/os-release", absent_ok=True) or reader.text("/usr/lib/os-release", "host.os") or ""
    fields = dict(re.findall(r"^(\w+)=(.*)$", text, re.M))

    def field(name: str) -> str | None:
        return "".join(shlex.split(fields[name])) if name in fields else None

    return {"id": field("ID"), "version_id": field("VERSION_ID")}


def _memory(reader: Reader) -> dict[str, int | None]:
    text = reader.text("/proc/meminfo", "host.memory") or ""
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}
    memory = {
        "total_bytes": kib["MemTotal"] * 1024 if "MemTotal" in kib else None,
        "available_bytes": kib["MemAvailable"] * 1024 if "MemAvailable" in kib else None,
    }
    if None in memory.values():
        reader.miss("host.memory")
    return memory


def _uptime(reader: Reader) -> float | None:
    text = reader.text("/proc/uptime", "host.uptime_s")
    return float(text.split()[0]) if text else None


def _docker(reader: Reader) -> dict[str, str] | None:
    argv = ["docker", "version", "--format", "{{.Server.Version}}"]
    version = (reader.command("docker-version", argv, "host.docker", absent_ok=reader.live) or "").strip()
    return {"version": version} if version else None


def _synchronized(reader: Reader) -> bool | None:
    argv = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    said = (reader.command("timedatectl", argv, "host.clock") or "").strip()
    return {"yes": True, "no": False}.get(said)
