"""All probe sections of one node in one dictionary; what the module ``probe`` returns and tests replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.probe_fabric import read_fabric
from ansible_collections.sparkmesh.cluster.plugins.module_utils.probe_gpu import read_gpu, read_storage
from ansible_collections.sparkmesh.cluster.plugins.module_utils.probe_host import read_host, read_kernel
from ansible_collections.sparkmesh.cluster.plugins.module_utils.probe_release import (
    read_image,
    read_model,
    read_runtime,
)
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import Reader

SECTIONS: dict[str, Callable[[Reader], dict[str, Any]]] = {
    "host": read_host,
    "kernel": read_kernel,
    "fabric": read_fabric,
    "gpu": read_gpu,
    "storage": read_storage,
    "image": read_image,
    "model": read_model,
    "runtime": read_runtime,
}
EMULATED_LIST = "/run/sparkmesh-lab/emulated"


def read_node(sections: Iterable[str], reader: Reader) -> dict[str, Any]:
    """The asked sections, plus ``emulated`` (what the lab says is not real here) and ``unobserved``."""
    probe: dict[str, Any] = {name: SECTIONS[name](reader) for name in SECTIONS if name in set(sections)}
    probe["emulated"] = (reader.text(EMULATED_LIST, absent_ok=True) or "").splitlines()
    probe["unobserved"] = sorted(reader.unobserved)
    return probe
