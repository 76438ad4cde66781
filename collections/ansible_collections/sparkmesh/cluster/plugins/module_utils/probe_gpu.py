"""Probe sections ``gpu`` and ``storage``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import Reader

# Where images, models and everything else of ours lie; /boot fills up when kernels pile up.
STORAGE_PATHS = ("/", "/boot", "/var/lib/docker", "/var/lib/sparkmesh")


def read_gpu(reader: Reader) -> dict[str, Any]:
    """``{driver, uvm: {srcversion, signer, parameters} | None, names}``; None means observed and not loaded."""
    modules = reader.names("/sys/module", "gpu.driver")
    return {
        "driver": _driver(reader) if "nvidia" in modules or reader.exists("/proc/driver/nvidia") else None,
        "uvm": _uvm(reader) if "nvidia_uvm" in modules else None,
        "names": _names(reader),
    }


def read_storage(reader: Reader) -> dict[str, Any]:
    """``{mounts: {path: {free_bytes, total_bytes}}}``: the space a writer of ``path`` would have.

    A path that does not exist yet is measured where it would be made.
    """
    spaces = {path: _space_live(path) if reader.live else _space_recorded(reader, path) for path in STORAGE_PATHS}
    return {"mounts": {path: space for path, space in spaces.items() if space is not None}}


def _driver(reader: Reader) -> str | None:
    version = reader.text("/sys/module/nvidia/version", absent_ok=True)
    if version:
        return version
    text = reader.text("/proc/driver/nvidia/version", "gpu.driver") or ""
    found = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.M)
    if found is None:
        reader.miss("gpu.driver")
        return None
    return found[1]


def _uvm(reader: Reader) -> dict[str, Any]:
    base = "/sys/module/nvidia_uvm"
    signer = reader.command("modinfo-signer", ["modinfo", "-F", "signer", "nvidia_uvm"], "gpu.uvm.signer")
    parameters = {
        name: reader.text(f"{base}/parameters/{name}", f"gpu.uvm.parameters.{name}")
        for name in reader.names(f"{base}/parameters", absent_ok=True)
    }
    return {
        "srcversion": reader.text(f"{base}/srcversion", "gpu.uvm.srcversion"),
        "signer": (signer or "").strip() or None,
        "parameters": parameters,
    }


def _names(reader: Reader) -> list[str]:
    models = []
    for slot in reader.names("/proc/driver/nvidia/gpus", absent_ok=True):
        text = reader.text(f"/proc/driver/nvidia/gpus/{slot}/information", "gpu.names") or ""
        models += re.findall(r"^Model:\s*(.+?)\s*$", text, re.M)
    return models


def _space_live(path: str) -> dict[str, int]:
    place = Path(path)
    while not place.exists():
        place = place.parent
    stat = os.statvfs(place)
    return {"free_bytes": stat.f_bavail * stat.f_frsize, "total_bytes": stat.f_blocks * stat.f_frsize}


def _space_recorded(reader: Reader, path: str) -> dict[str, int] | None:
    text = reader.command("df", ["df", "-B1", "--output=target,avail,size"], f"storage.mounts.{path}") or ""
    best: tuple[int, dict[str, int]] | None = None
    for target, free, total in re.findall(r"^(/\S*)\s+(\d+)\s+(\d+)$", text, re.M):
        if f"{path}/".startswith(f"{target.rstrip('/')}/") and (best is None or len(target) > best[0]):
            best = (len(target), {"free_bytes": int(free), "total_bytes": int(total)})
    return best[1] if best else None
