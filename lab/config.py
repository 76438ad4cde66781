"""Every name, address and folder of the lab, in one place."""

import os
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
NODE_FILES = REPO / "lab" / "node"

NETWORK = "sparkmesh-lab"
BRIDGE = "br-sparkmesh"
SUBNET = "172.31.77.0/24"
HOST_ADDRESS = "172.31.77.1"
SERVER_PORT = 8400
SERVER_URL = f"http://{HOST_ADDRESS}:{SERVER_PORT}"

LABEL = "io.sparkmesh.lab"
PANEL = "sparkmesh-panel"
BASE_NAME = "lab/base"
BASE_TAG = "bookworm-py311"
USER = "nvidia"

SIZES = {"triangle": 3, "ring": 4}
MAX_NODES = max(SIZES.values())
# Images, inner Docker volumes of three nodes and the model, with room for one rebuild of the serving image.
DISK_WANTED_GIB = 20


def state_dir() -> Path:
    """Everything that belongs to the running lab. Removed by ``down --purge``."""
    return Path(os.environ.get("SPARKMESH_LAB_DIR") or "/var/lib/sparkmesh-lab")


def cache_dir() -> Path:
    """What is expensive to make and may outlive the lab: images and wheels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkmesh"


def disk_wanted_gib() -> float:
    """Free space asked for under the state folder; ``SPARKMESH_LAB_DISK_GIB`` overrides it."""
    return float(os.environ.get("SPARKMESH_LAB_DISK_GIB") or DISK_WANTED_GIB)


@dataclass(frozen=True)
class Node:
    """One stand-in Spark; ``number`` counts from 1."""

    number: int

    @property
    def name(self) -> str:
        return f"spark-{self.number}"

    @property
    def pause(self) -> str:
        """The container that keeps the network namespace, so that cables outlive a reboot of the node."""
        return f"{self.name}-net"

    @property
    def address(self) -> str:
        return f"172.31.77.{10 + self.number}"


def nodes(topology: str) -> list[Node]:
    """The nodes of a topology, head first."""
    return [Node(number) for number in range(1, SIZES[topology] + 1)]
