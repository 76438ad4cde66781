"""NCCL's environment for a direct-cabled fabric, each value with its reason.

The values are those published for stock NCCL 2.30.7, the first with subnet-aware routing. Controls that only patched
libraries read are left out: a stock library ignores them silently, which would look like a setting that works.
``NCCL_IB_GID_INDEX`` is never set: the index of the IPv4 RoCE v2 entry differs per device and moves over a node's
life, and NCCL finds it by family and version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One environment variable, the same on every rank."""

    name: str
    value: str
    reason: str


COMMON = (
    Setting("NCCL_NET", "IB", "without RDMA it must fail; the silent fall-back to TCP has a fiftieth of the speed"),
    Setting("NCCL_NET_PLUGIN", "none", "a network plugin found in the image would replace the verbs transport"),
    Setting("NCCL_IB_DISABLE", "0", "an image or nccl.conf that switches RDMA off must not win"),
    Setting("NCCL_IB_MERGE_NICS", "1", "a stock listener advertises the GIDs of its fused device only: unfused, one"),
    Setting("NCCL_IB_ADDR_FAMILY", "AF_INET", "the plan addresses the links with IPv4"),
    Setting("NCCL_IB_ROCE_VERSION_NUM", "2", "picks the RoCE v2 entry among the GIDs of the same address"),
    Setting("NCCL_CROSS_NIC", "1", "the two ends of a cable are different ports, so rails may cross"),
    Setting("NCCL_IGNORE_CPU_AFFINITY", "1", "bind threads by the GPU, not by the CPU set of the container"),
    Setting("NCCL_P2P_DISABLE", "1", "one GPU a node: there is no peer to reach inside it"),
    Setting("NCCL_SHM_DISABLE", "1", "one GPU a node: no shared-memory transport to set up"),
    Setting("NCCL_NVLS_ENABLE", "0", "there is no NVLink switch to probe"),
    Setting("NCCL_PROTO", "^LL128", "as in every published profile of these fabrics; not compared by us"),
    Setting("NCCL_LL128_BUFFSIZE", "262144", "buffers are pinned host memory, the same memory the model lives in"),
    Setting("NCCL_BUFFSIZE", "1048576", "as above; 4 MiB was published for patched libraries only"),
    Setting("NCCL_DEBUG", "WARN", "a healthy run prints nothing, so any line is worth reading"),
    Setting("NCCL_DEBUG_SUBSYS", "INIT", "transport selection is the part that fails"),
    Setting("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "a rank whose peer died must end, not wait for ever"),
)

DIRECT = (
    Setting("NCCL_CUMEM_ENABLE", "0", "as published for direct fabrics; only connecting at run time needs it"),
    Setting("NCCL_MAX_NCHANNELS", "8", "as published; channels take SMs and memory, and more gained 1 % at most"),
)

CYCLE = (Setting("NCCL_IB_SUBNET_AWARE_ROUTING", "1", "a port reaches one neighbour: pick the one on its subnet"),)

# A ring has no diagonal cable. Everything here keeps NCCL from opening a connection to the opposite rank.
RING = (
    Setting("NCCL_ALGO", "Ring", "trees join ranks that share no cable"),
    Setting("NCCL_RUNTIME_CONNECT", "1", "connect only what an operation uses, not the tree NCCL sets up first"),
    Setting("NCCL_CUMEM_ENABLE", "1", "connecting at run time needs it"),
    Setting("NCCL_CUMEM_HOST_ENABLE", "0", "one process a node shares no host buffers"),
    Setting("NCCL_PAT_ENABLE", "0", "PAT exchanges with ranks at distance two"),
    Setting("NCCL_COLLNET_ENABLE", "0", "there is no switch that reduces"),
    Setting("NCCL_MNNVL_ENABLE", "0", "there is no NVLink between nodes"),
    Setting("NCCL_RMA_DISABLE", "1", "one-sided operations address every rank"),
    Setting("NCCL_GIN_ENABLE", "0", "GPU-initiated networking connects every rank to every rank"),
    Setting("NCCL_IB_SUBNET_PREFIX_LEN", "24", "the length of the plan's link networks"),
    Setting("NCCL_MIN_NCHANNELS", "4", "four channels instead of one were published as 23 % faster prefill"),
    Setting("NCCL_MAX_NCHANNELS", "4", "equal to the minimum, so that every rank settles on the same number"),
)

SETTINGS: dict[str, tuple[Setting, ...]] = {
    "pair": COMMON + DIRECT,
    "triangle": COMMON + DIRECT + CYCLE,
    "ring": COMMON + CYCLE + RING,
}

# Each of these replaces the algorithm or the graph that RING fixes.
FORBIDDEN_IN_RING = ("NCCL_ALGO_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_GRAPH_FILE", "NCCL_TOPO_FILE")


def nccl_profile(plan: Mapping[str, Any]) -> dict[str, str]:
    """The NCCL environment that every rank of ``plan`` shares; the devices are each node's own, see ``nccl_hcas``."""
    return {setting.name: setting.value for setting in SETTINGS[plan["topology"]]}


def nccl_hcas(plan: Mapping[str, Any], node: str) -> str:
    """``NCCL_IB_HCA`` of ``node``: both lanes of every cabled cage; ``=`` because NCCL otherwise matches prefixes."""
    return "=" + ",".join(link["hca"] for link in plan["nodes"][node]["links"])
