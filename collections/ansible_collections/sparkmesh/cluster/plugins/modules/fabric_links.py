#!/usr/bin/python
"""Ansible module: one node's fabric links."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_links
short_description: Address the fabric links of a node, and prove them
version_added: "0.1.0"
description:
  - Writes C(/etc/netplan/60-sparkmesh-fabric.yaml) for one node of the fabric plan, applies and verifies it.
  - >-
    When netplan refuses, or addresses, MTU or the management address are not right in time, the files of before come
    back byte for byte and are applied again, and the task fails with both facts.
  - >-
    Refuses an interface that is missing, carries the default route or the connection it runs under, is part of a bond,
    bridge or VLAN, or is configured by another netplan file.
options:
  plan_node:
    description: The node's entry of C(fabric_plan(...).nodes). Not needed to revert.
    type: dict
  mtu:
    description: MTU of every fabric interface, in bytes.
    type: int
    default: 9000
  state:
    description:
      - V(applied) brings the links into force and records the entry in C(/etc/sparkmesh/fabric.json).
      - V(proved) changes nothing and sends unfragmented pings of full MTU over every link at once, each bound to its
        interface, and looks at route and neighbour.
      - V(reverted) gives back the netplan files, addresses and MTUs of before sparkmesh.
    type: str
    choices: [applied, proved, reverted]
    default: applied
  allow_change:
    description:
      - The consent to take links down for a moment (variable C(fabric_allow_link_change)).
      - Without it a needed change fails with the diff as text.
    type: bool
    default: false
  adopt_foreign:
    description:
      - Take the fabric interfaces out of other files below C(/etc/netplan), after a byte-exact backup.
      - Definitions that match more than one interface, bonds, bridges and VLANs are never adopted.
    type: bool
    default: false
  renderer:
    description: The netplan backend for the fabric interfaces; by default the one the node's own files choose.
    type: str
    choices: [networkd, NetworkManager]
  management_address:
    description: >-
      An address the node must keep; its interface is refused as fabric. Interfaces of default routes and of the SSH
      connection are guarded anyway.
    type: str
  verify_timeout:
    description: How long addresses and MTU may take after C(netplan apply), in seconds.
    type: int
    default: 20
attributes:
  check_mode:
    support: full
    description: >-
      Tells what would change, consent or not. V(state=proved) with a pending change reports the links as
      C(unobserved).
  diff_mode:
    support: full
    description: Shows every file whole.
author: sparkmesh
"""

EXAMPLES = r"""
- name: Links of this node
  sparkmesh.cluster.fabric_links:
    plan_node: "{{ __roce_fabric_plan.nodes[inventory_hostname] }}"
    mtu: "{{ fabric_mtu }}"
    allow_change: "{{ fabric_allow_link_change }}"
    management_address: "{{ ansible_host }}"

- name: Proof, once all nodes are addressed
  sparkmesh.cluster.fabric_links:
    plan_node: "{{ __roce_fabric_plan.nodes[inventory_hostname] }}"
    mtu: "{{ fabric_mtu }}"
    state: proved
"""

RETURN = r"""
links:
  description: One entry for each link of the plan entry.
  returned: state is applied or proved
  type: list
  elements: dict
  contains:
    cable: {description: The cable's id., type: str}
    lane: {description: The lane of the cable., type: int}
    interface: {description: The interface here., type: str}
    peer: {description: The node at the other end., type: str}
    peer_address: {description: Its address on this link., type: str}
    status: {description: "V(ok), V(fail) or V(unobserved).", type: str}
    ok: {description: Whether the link is proved; null when unobserved., type: bool}
    seen: {description: What was seen., type: str}
    wanted: {description: What should be seen., type: str}
    fix: {description: What to do., type: str}
waiting:
  description: Interfaces that get their address as soon as they have a carrier.
  returned: state is applied
  type: list
  elements: str
actions:
  description: What changed or would change, in words.
  returned: always
  type: list
  elements: str
  sample: ["write /etc/netplan/60-sparkmesh-fabric.yaml"]
"""

from ansible_collections.sparkmesh.cluster.plugins.module_utils import fabric_proof
from ansible_collections.sparkmesh.cluster.plugins.module_utils._module import NodeModule
from ansible_collections.sparkmesh.cluster.plugins.module_utils.fabric_apply import Fabric, FabricError, revert
from ansible_collections.sparkmesh.cluster.plugins.module_utils.journal import Journal, JournalError
from ansible_collections.sparkmesh.cluster.plugins.module_utils.netplan import RENDERERS, NetplanError
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import CommandFailed, Reader

CONSENT = "set fabric_allow_link_change: true (allow_change) to allow it while no rank is serving"


def apply_links(module: NodeModule, fabric: Fabric) -> None:
    """state=applied."""
    fabric.prepare()
    diff, pending = fabric.diffs(), fabric.disruptions()
    record = fabric.plan_differs()
    why = "not proved by state=applied; state=proved does that"
    if pending and not module.check_mode:
        if not module.params["allow_change"]:
            module.fail(
                f"the fabric links need a change that takes them down for a moment: {'; '.join(pending)}. {CONSENT}.\n"
                f"{fabric.diff_text()}",
                actions=pending, diff=diff,
            )  # fmt: skip
        fabric.apply()
    if record and not module.check_mode:
        fabric.record_plan()
    if module.check_mode:
        needs = [] if module.params["allow_change"] or not pending else [f"needs consent: {CONSENT}"]
        fabric.actions = [*pending, *(["record the plan entry"] if record else []), *needs]
        why = "pending change" if pending else why
    module.exit(
        changed=bool(pending or record), actions=fabric.actions, diff=diff, waiting=fabric.waiting,
        links=fabric_proof.unobserved(fabric.links, fabric.mtu, why),
    )  # fmt: skip


def prove_links(module: NodeModule, fabric: Fabric) -> None:
    """state=proved."""
    if module.check_mode:
        fabric.prepare()
        pending = fabric.disruptions()
        if pending:
            why = f"pending change: {'; '.join(pending)}"
            module.exit(changed=False, links=fabric_proof.unobserved(fabric.links, fabric.mtu, why))
    links = fabric_proof.prove(fabric.links, fabric.mtu, fabric.reader)
    failed = [link for link in links if not link["ok"]]
    if failed:
        text = "; ".join(
            f"{link['interface']} → {link['peer']}: {link['seen']}, wanted {link['wanted']}; fix: {link['fix']}"
            for link in failed
        )
        module.fail(f"{len(failed)} of {len(links)} fabric links are not proved: {text}", links=links)
    module.exit(changed=False, links=links)


def revert_links(module: NodeModule, journal: Journal) -> None:
    """state=reverted."""
    pending = [f"restore {path}" for path in journal.kept]
    if not pending:
        module.exit(changed=False)
    if module.check_mode:
        module.exit(changed=True, actions=pending)
    if not module.params["allow_change"]:
        module.fail(f"reverting takes the fabric links down: {'; '.join(pending)}. {CONSENT}", actions=pending)
    module.exit(changed=True, actions=revert(Reader(), journal))


def main() -> None:
    """Apply, prove or revert, and return."""
    module = NodeModule(
        {
            "plan_node": {"type": "dict"},
            "mtu": {"type": "int", "default": 9000},
            "state": {"type": "str", "choices": ["applied", "proved", "reverted"], "default": "applied"},
            "allow_change": {"type": "bool", "default": False},
            "adopt_foreign": {"type": "bool", "default": False},
            "renderer": {"type": "str", "choices": list(RENDERERS)},
            "management_address": {"type": "str"},
            "verify_timeout": {"type": "int", "default": 20},
        },
        required_if=[("state", "applied", ["plan_node"]), ("state", "proved", ["plan_node"])],
    )
    try:
        journal = Journal("fabric")
        if module.params["state"] == "reverted":
            revert_links(module, journal)
        fabric = Fabric(
            module.params["plan_node"],
            module.params["mtu"],
            Reader(),
            journal,
            renderer=module.params["renderer"],
            adopt_foreign=module.params["adopt_foreign"],
            management_address=module.params["management_address"],
            verify_timeout=float(module.params["verify_timeout"]),
        )
        if module.params["state"] == "applied":
            apply_links(module, fabric)
        prove_links(module, fabric)
    except (FabricError, NetplanError, JournalError, CommandFailed) as problem:
        module.fail(str(problem))


if __name__ == "__main__":
    main()
