"""The rank spec: one document per rank that says all a node needs to take its place in the group.

Values that must be equal on every rank and values of one rank are kept apart, so that one hash can prove equality.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.nccl_profile import nccl_hcas, nccl_profile
from ansible_collections.sparkmesh.cluster.plugins.module_utils.plain import canonical_json, sha256_hex
from ansible_collections.sparkmesh.cluster.plugins.module_utils.rank_profile import profile_problems
from ansible_collections.sparkmesh.cluster.plugins.module_utils.refusal import Refusal

SCHEMA = 1
LINK_KEYS = ("interface", "hca", "address", "peer", "peer_address")
# What may differ between ranks, and what is computed from the rest.
NOT_IN_GROUP = ("rank", "node", "address", "node_environment", "release", "group_hash")

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BY_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")


class SpecError(Refusal):
    """The input makes no rank spec."""


def rank_spec(
    node: str,
    *,
    ranks: Mapping[str, int],
    addresses: Mapping[str, str],
    plan: Mapping[str, Any],
    profile: Mapping[str, Any],
    image: Mapping[str, str],
    model: Mapping[str, str],
    cluster: str,
    management_interface: str,
) -> dict[str, Any]:
    """The rank spec of ``node``.

    ``ranks`` node → rank and ``addresses`` node → control address (management network) of the whole group; ``plan``
    from ``fabric_plan``; ``profile`` as ``rank_profile`` describes; ``image`` ``{identity, reference}``, the reference
    by digest; ``model`` ``{path, name, manifest}``; ``management_interface`` this node's own.

    Raises ``SpecError`` with every problem found.
    """
    inputs = {"ranks": ranks, "addresses": addresses, "plan": plan, "profile": profile, "image": image, "model": model}
    problems = [f"{name} is {value!r}, wanted a mapping" for name, value in inputs.items() if not _is_mapping(value)]
    if problems:
        raise SpecError(problems)
    problems = [
        *_group_problems(node, ranks, addresses, plan),
        *profile_problems(profile, len(ranks), plan.get("topology")),
        *_content_problems(image, model, cluster),
        *_interface_problems(management_interface, node, plan),
    ]
    if problems:
        raise SpecError(problems)
    order = sorted(ranks, key=lambda name: ranks[name])
    environment, node_environment = _environments(node, addresses, plan, profile, management_interface)
    spec: dict[str, Any] = {
        "schema": SCHEMA,
        "cluster": cluster,
        "rank": ranks[node],
        "size": len(ranks),
        "node": node,
        "address": addresses[node],
        "head": {"address": addresses[order[0]], "master_port": profile["master_port"]},
        "api": {key: profile["api"][key] for key in ("host", "port")},
        "image": {key: image[key] for key in ("identity", "reference")},
        "model": {key: model[key] for key in ("path", "name", "manifest")},
        "vllm": {"options": dict(profile["options"])},
        "environment": environment,
        "node_environment": node_environment,
        "fabric": {
            "mtu": plan["mtu"],
            "links": [{key: link[key] for key in LINK_KEYS} for link in plan["nodes"][node]["links"]],
        },
        "guard": dict(profile["guard"]),
        "timeouts": dict(profile["timeouts"]),
    }
    spec["release"] = release_id(spec, order)
    spec["group_hash"] = group_hash(spec, order)
    return spec


def group_hash(spec: Mapping[str, Any], order: list[str]) -> str:
    """``sha256:…`` over all of ``spec`` that every rank shares, and over the nodes in rank order."""
    return f"sha256:{sha256_hex(_group_part(spec, order))}"


def release_id(spec: Mapping[str, Any], order: list[str]) -> str:
    """``r-`` and 12 hex digits, named by content: image identity, model manifest and the group part."""
    text = spec["image"]["identity"] + spec["model"]["manifest"] + _group_part(spec, order)
    return f"r-{sha256_hex(text)[:12]}"


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _group_part(spec: Mapping[str, Any], order: list[str]) -> str:
    group = {key: value for key, value in spec.items() if key not in NOT_IN_GROUP}
    group["fabric"] = {key: value for key, value in spec["fabric"].items() if key != "links"}
    return canonical_json({**group, "nodes": order})


def _environments(
    node: str, addresses: Mapping[str, str], plan: Mapping[str, Any], profile: Mapping[str, Any], interface: str
) -> tuple[dict[str, str], dict[str, str]]:
    """What all ranks share, the profile's own values winning over NCCL's defaults, and what is this node's."""
    over_rdma = profile["fabric_transport"] == "nccl"
    shared = {**(nccl_profile(plan) if over_rdma else {}), **profile["environment"]}
    own = {"VLLM_HOST_IP": addresses[node], "GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return shared, own | ({"NCCL_IB_HCA": nccl_hcas(plan, node)} if over_rdma else {})


def _group_problems(
    node: str, ranks: Mapping[str, int], addresses: Mapping[str, str], plan: Mapping[str, Any]
) -> list[str]:
    problems = []
    if node not in ranks:
        problems.append(f'node "{node}" has no rank; the ranks are {dict(ranks)}: set its node_rank')
    if any(type(rank) is not int for rank in ranks.values()) or sorted(ranks.values()) != list(range(len(ranks))):
        problems.append(f"ranks are {dict(ranks)}, wanted 0 to {len(ranks) - 1}, each once: correct node_rank")
    planned = {name: entry["rank"] for name, entry in plan.get("nodes", {}).items()}
    if planned != dict(ranks):
        problems.append(f"the fabric plan has the ranks {planned}, the group has {dict(ranks)}: plan it again")
    owners: dict[str, str] = {}
    fabric = _fabric_networks(plan)
    for name in ranks:
        # Text, so that a number is refused instead of read as an address.
        text = str(addresses.get(name, "missing"))
        try:
            address = ipaddress.IPv4Address(text)
        except ipaddress.AddressValueError as error:
            problems.append(f"{name}: control address is {text!r}, wanted its IPv4 management address: {error}")
            continue
        if text in owners:
            problems.append(f"{name} and {owners[text]} share the control address {text}: give each its own")
        owners[text] = name
        if any(address in network for network in fabric):
            problems.append(
                f"{name}: control address {text} is on the fabric, where not every rank reaches it and the rendezvous "
                "hangs: use the management address"
            )
    return problems


def _fabric_networks(plan: Mapping[str, Any]) -> set[ipaddress.IPv4Network]:
    return {
        ipaddress.IPv4Network(f"{link['address']}/{link['prefix']}", strict=False)
        for entry in plan.get("nodes", {}).values()
        for link in entry["links"]
    }


def _content_problems(image: Mapping[str, str], model: Mapping[str, str], cluster: str) -> list[str]:
    wanted = (
        (image, "image.identity", _DIGEST, "sha256: and 64 hex digits, as image_identity returned it"),
        (image, "image.reference", _BY_DIGEST, "registry/name@sha256:…, because a tag may move"),
        (model, "model.path", re.compile(r"/\S*"), "an absolute path inside the container"),
        (model, "model.name", re.compile(r"\S+"), "the name that the API serves, without spaces"),
        (model, "model.manifest", _DIGEST, "sha256: and 64 hex digits, as model_store returned it"),
        ({"name": cluster}, "cluster.name", re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*"), "letters, digits, . _ -"),
    )
    problems = []
    for source, name, pattern, text in wanted:
        value = source.get(name.split(".")[1])
        if not isinstance(value, str) or not pattern.fullmatch(value):
            problems.append(f"{name} is {value!r}, wanted {text}")
    return problems


def _interface_problems(interface: str, node: str, plan: Mapping[str, Any]) -> list[str]:
    if not isinstance(interface, str) or not _INTERFACE.fullmatch(interface):
        return [f"{node}: management_interface is {interface!r}, wanted one interface name: Gloo takes no list"]
    links = plan.get("nodes", {}).get(node, {}).get("links", [])
    if interface in [link["interface"] for link in links]:
        return [f"{node}: management_interface {interface} carries a cable: name the one on the management network"]
    return []
