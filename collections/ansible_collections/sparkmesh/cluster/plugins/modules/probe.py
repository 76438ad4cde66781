#!/usr/bin/python
"""Ansible module: observe a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: probe
short_description: Observe a node without changing it
version_added: "0.1.0"
description:
  - Reads the state of a node from procfs, sysfs and a few commands, in one round trip.
  - Never guesses. What could not be read is named in RV(probe.unobserved).
options:
  sections:
    description: What to observe. Each section costs few processes, so asking for less is rarely worth it.
    type: list
    elements: str
    choices: [host, kernel, fabric, gpu, storage, image, model, runtime]
    default: [host, kernel, fabric, gpu, storage, image, model, runtime]
  root:
    description:
      - The tree to read. Anything but V(/) is a recorded node, where no command runs.
      - >-
        Command output is then read from C(<root>/commands/<name>.txt), with the names C(uname) (C(uname -m)),
        C(getconf) (C(getconf PAGESIZE)), C(python) (version), C(docker-version), C(timedatectl), C(ip-addr)
        (C(ip -j -4 addr show)), C(df) (C(df -B1 --output=target,avail,size)), C(modinfo-signer), C(docker-images),
        C(docker-inspect) and C(systemctl-show).
    type: path
    default: /
notes:
  - Run it with C(become), otherwise parts of the node stay unobserved.
  - PCI address and driver come from pyudev where it is installed, else from sysfs.
attributes:
  check_mode:
    support: full
    description: The module never changes anything.
  diff_mode:
    support: none
    description: There is nothing to compare.
author: sparkmesh
"""

EXAMPLES = r"""
- name: Observe the fabric and the service
  sparkmesh.cluster.probe:
    sections: [host, fabric, runtime]
  register: __doctor_probe

- name: Replay a recorded node
  sparkmesh.cluster.probe:
    root: /srv/recordings/spark-1
  register: __doctor_probe
"""

RETURN = r"""
probe:
  description: One key for each asked section, plus C(emulated) and C(unobserved).
  returned: always
  type: dict
  contains:
    host:
      description: Identity, memory (bytes), uptime (s), Docker, clock. C(container) is the kind of container or false.
      type: dict
    kernel:
      description: Release, page size (bytes) and command line.
      type: dict
    fabric:
      description: >-
        Interfaces (C(speed) in Mb/s, null while down), RoCE devices with their filled GID slots in index order, and
        the interface of the default route.
      type: dict
    gpu:
      description: Driver version, the loaded nvidia-uvm and the names of the GPUs. Null means not loaded.
      type: dict
    storage:
      description: Free and total bytes for a writer of each path.
      type: dict
    image:
      description: The images that carry the sparkmesh source label, with their content identity.
      type: dict
    model:
      description: The model stores with a manifest.
      type: dict
    runtime:
      description: The sparkmesh units that are installed, and release and group hash of the installed rank.
      type: dict
    emulated:
      description: What the lab emulates on this node; empty on a real one.
      type: list
      elements: str
    unobserved:
      description: The keys that could not be read.
      type: list
      elements: str
      sample: [fabric.hcas]
actions:
  description: Always empty.
  returned: always
  type: list
  elements: str
"""

from ansible_collections.sparkmesh.cluster.plugins.module_utils._module import NodeModule
from ansible_collections.sparkmesh.cluster.plugins.module_utils.probe_node import SECTIONS, read_node
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import Reader


def main() -> None:
    """Observe and return."""
    names = list(SECTIONS)
    module = NodeModule(
        {
            "sections": {"type": "list", "elements": "str", "choices": names, "default": names},
            "root": {"type": "path", "default": "/"},
        }
    )
    reader = Reader(module.params["root"])
    if not reader.root.is_dir():
        module.fail(f"root {reader.root} is no directory; wanted the root of a node or of a recorded one")
    module.exit(changed=False, probe=read_node(module.params["sections"], reader))


if __name__ == "__main__":
    main()
