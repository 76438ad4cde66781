#!/usr/bin/python
"""Ansible module: a content-verified model store. All of its logic is in module_utils."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store
short_description: Keep a content-verified store of model files and relay it between neighbours
description:
  - A store lies at C(<root>/<name>/<revision>/) with a manifest of sizes and SHA-256 hashes; while it is being
    received it lies at C(<root>/<name>/.partial-<revision>/).
  - Check mode says what would happen, also on a node that has nothing yet.
options:
  root:
    description: Folder of all stores.
    type: path
    default: /var/lib/sparkmesh/models
  name:
    description: Name of the model, one folder name. Needed for every state but V(served) and V(unserved).
    type: str
  revision:
    description: Pinned revision, one folder name. Needed for V(checked), V(opened), V(sealed) and V(relayed).
    type: str
  state:
    description:
      - V(checked) reports and never fails on an incomplete store.
      - V(opened) makes the partial folder ready for a download; a damaged store moves there without its bad files.
      - V(sealed) proves a finished download against the hub's metadata, writes the manifest, renames into place.
      - V(served) runs the relay on the fabric addresses, V(unserved) stops it.
      - V(relayed) pulls the store from a neighbour's relay and proves it.
      - V(pruned) removes revisions that are not in O(keep); without O(allow_prune) it lists them.
    type: str
    choices: [checked, opened, sealed, served, unserved, relayed, pruned]
    default: checked
  deep:
    description: Read every file again instead of trusting the cache of size, time and inode.
    type: bool
    default: false
  manifest:
    description: Expected manifest digest (sha256:...). Needed for V(relayed).
    type: str
    default: ''
  repo:
    description: The hub repository, recorded in the manifest.
    type: str
    default: ''
  expected:
    description: For V(sealed), a map of path to size and sha256; a sha256 of null proves the size alone.
    type: dict
  hub_metadata_url:
    description: For V(sealed), C(<endpoint>/api/models/<repo>/revision/<revision>?blobs=true).
    type: str
  hub_token:
    description: Bearer token for the hub.
    type: str
    default: ''
  expected_bytes:
    description: For V(opened), the size of the download, for the check of free space.
    type: int
    default: 0
  min_free_bytes:
    description: Bytes that must stay free after a download or a pull.
    type: int
    default: 0
  addresses:
    description: Fabric addresses of this node for V(served).
    type: list
    elements: str
    default: []
  port:
    description: Port of the relay for V(served).
    type: int
    default: 5001
  token:
    description: The relay's token of this run, at least 16 characters. Needed for V(served) and V(relayed).
    type: str
  idle_s:
    description: Seconds without a request after which the relay stops by itself.
    type: int
    default: 1800
  upstreams:
    description: For V(relayed), C(http://<address>:<port>) of one neighbour, one per lane.
    type: list
    elements: str
    default: []
  threads:
    description: Ranges received at once.
    type: int
    default: 8
  range_bytes:
    description: Size of one range.
    type: int
    default: 67108864
  timeout_s:
    description: Seconds without a single byte after which a pull gives up.
    type: int
    default: 600
  keep:
    description: Revisions that V(pruned) keeps.
    type: list
    elements: str
    default: []
  allow_prune:
    description: Consent to remove.
    type: bool
    default: false
author:
  - sparkmesh
"""

EXAMPLES = r"""
- name: Pull the model from the neighbour, over both lanes of the cable
  sparkmesh.cluster.model_store:
    name: tiny
    revision: main
    state: relayed
    manifest: "{{ head_manifest }}"
    upstreams: ["http://10.20.8.11:5001", "http://10.20.9.11:5001"]
    token: "{{ relay_token }}"
"""

RETURN = r"""
actions: {description: What changed or would change in words., returned: always, type: list, elements: str}
manifest: {description: Digest of the files map., returned: always, type: str}
complete: {description: Every file is proved and nothing else is there., returned: always, type: bool}
reason: {description: Why it is not complete., returned: always, type: str}
files_ok: {description: Proved files., returned: always, type: list, elements: str}
files_missing: {description: Absent files., returned: always, type: list, elements: str}
files_bad: {description: Files with path and seen and wanted., returned: always, type: list, elements: dict}
files_extra: {description: Files that are not in the manifest., returned: always, type: list, elements: str}
bytes: {description: Size of the proved files., returned: always, type: int}
store: {description: Folder of the store., returned: for states about one store, type: str}
partial: {description: Folder to download into., returned: for states about one store, type: str}
received_bytes: {description: Bytes that came over the link., returned: relayed, type: int}
resumed_bytes: {description: Bytes that were already here., returned: relayed, type: int}
seconds: {description: Duration of the pull., returned: relayed, type: float}
bytes_per_second: {description: Rate of the pull., returned: relayed, type: int}
refetched: {description: Files that had to be fetched again., returned: relayed, type: list, elements: str}
removable: {description: Folder to bytes of what may go., returned: pruned, type: dict}
"""

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmesh.cluster.plugins.module_utils import (
    model_store,
    relay,
    relay_pull,
    relay_unit,
)
from ansible_collections.sparkmesh.cluster.plugins.module_utils.progress import Progress

SPEC: dict[str, dict[str, Any]] = {
    "root": {"type": "path", "default": "/var/lib/sparkmesh/models"},
    "name": {"type": "str"},
    "revision": {"type": "str"},
    "state": {
        "type": "str",
        "default": "checked",
        "choices": ["checked", "opened", "sealed", "served", "unserved", "relayed", "pruned"],
    },
    "deep": {"type": "bool", "default": False},
    "manifest": {"type": "str", "default": ""},
    "repo": {"type": "str", "default": ""},
    "expected": {"type": "dict"},
    "hub_metadata_url": {"type": "str"},
    "hub_token": {"type": "str", "default": "", "no_log": True},
    "expected_bytes": {"type": "int", "default": 0},
    "min_free_bytes": {"type": "int", "default": 0},
    "addresses": {"type": "list", "elements": "str", "default": []},
    "port": {"type": "int", "default": relay.DEFAULT_PORT},
    "token": {"type": "str", "no_log": True},
    "idle_s": {"type": "int", "default": 1800},
    "upstreams": {"type": "list", "elements": "str", "default": []},
    "threads": {"type": "int", "default": 8},
    "range_bytes": {"type": "int", "default": 64 << 20},
    "timeout_s": {"type": "int", "default": 600},
    "keep": {"type": "list", "elements": "str", "default": []},
    "allow_prune": {"type": "bool", "default": False},
}
REQUIRED_IF = [
    ("state", "checked", ["name", "revision"]),
    ("state", "opened", ["name", "revision"]),
    ("state", "sealed", ["name", "revision"]),
    ("state", "sealed", ["expected", "hub_metadata_url"], True),
    ("state", "served", ["token"]),
    ("state", "relayed", ["name", "revision", "token"]),
    ("state", "pruned", ["name"]),
]


def work(params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Bring about the state; returns the module's result without the report's fields where no store is meant."""
    state, root, name, revision = (params[key] for key in ("state", "root", "name", "revision"))
    if state in ("served", "unserved"):
        return _service(params, check_mode)
    if state == "pruned":
        removable = model_store.prunable(root, name, params["keep"])
        consent = params["allow_prune"]
        actions = [
            f"{'remove' if consent else 'would remove with allow_prune'} {name}/{each} ({size} bytes)"
            for each, size in removable.items()
        ]
        if consent and not check_mode:
            model_store.prune(root, name, params["keep"])
        return {"changed": consent and bool(removable), "actions": actions, "removable": removable}
    say = Progress("model").say if not check_mode else model_store.quiet
    report = model_store.check(
        root, name, revision, deep=params["deep"], manifest=params["manifest"], save=not check_mode, say=say
    )
    result: dict[str, Any] = {"changed": False, "actions": []}
    if state == "relayed" and not params["manifest"]:
        if not check_mode:
            raise relay.StoreError("manifest: none given, wanted the digest that the head returned for its store")
        result.update(changed=True, actions=[f"would pull {name}@{revision}, whose manifest is not known yet"])
    elif state != "checked" and not report.complete:
        report = _improve(params, check_mode, report, result, say)
    return {
        **result,
        **asdict(report),
        "store": str(relay.final_dir(root, name, revision)),
        "partial": str(relay.partial_dir(root, name, revision)),
    }


def _improve(
    params: dict[str, Any], check_mode: bool, report: model_store.Report, result: dict[str, Any], say: model_store.Say
) -> model_store.Report:
    """Open, seal or relay a store that is not complete; fills `result` and returns the report after it."""
    state, root, name, revision = (params[key] for key in ("state", "root", "name", "revision"))
    model, after = f"{name}@{revision}", report
    if check_mode:
        verb = {"opened": "open a partial folder for", "sealed": "verify and seal", "relayed": "pull"}[state]
        source = f" from {', '.join(params['upstreams'])}" if state == "relayed" else ""
        result.update(changed=True, actions=[f"would {verb} {model}{source}: {report.reason}"])
    elif state == "opened":
        model_store.require_space(root, params["expected_bytes"], params["min_free_bytes"])
        actions = model_store.open_partial(root, name, revision, report)
        result.update(changed=bool(actions), actions=actions)
    elif state == "sealed":
        expected = params["expected"] or model_store.hub_expected(
            params["hub_metadata_url"], revision, params["hub_token"]
        )
        after = model_store.seal(root, name, revision, expected, repo=params["repo"], say=say)
        result.update(changed=True, actions=[f"sealed {model}: {len(after.files_ok)} files, {after.bytes} bytes"])
    else:
        pulled = relay_pull.pull(
            root,
            name,
            revision,
            params["upstreams"],
            token=params["token"],
            manifest=params["manifest"],
            threads=params["threads"],
            span=params["range_bytes"],
            stall=params["timeout_s"],
            reserve=params["min_free_bytes"],
            say=say,
        )
        rate = int(pulled.received / pulled.seconds) if pulled.seconds else 0
        result.update(
            changed=pulled.changed,
            received_bytes=pulled.received,
            resumed_bytes=pulled.resumed,
            seconds=round(pulled.seconds, 3),
            bytes_per_second=rate,
            refetched=pulled.refetched,
            actions=[f"pulled {model} in {pulled.seconds:.1f} s: {pulled.received} bytes, {pulled.resumed} were here"],
        )
        after = model_store.check(root, name, revision, manifest=params["manifest"])
    return after


def _service(params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    if params["state"] == "unserved":
        try:
            actions = relay_unit.unserve(check=check_mode)
        except relay.StoreError:
            if not check_mode:
                raise
            actions = []
        return {"changed": bool(actions), "actions": actions}
    service = relay_unit.Service(
        root=params["root"],
        addresses=tuple(params["addresses"]),
        port=params["port"],
        token=params["token"],
        idle=params["idle_s"],
    )
    actions = relay_unit.plan(service) if check_mode else relay_unit.serve(service)
    return {"changed": bool(actions), "actions": actions, "unit": relay_unit.UNIT}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, required_if=REQUIRED_IF, supports_check_mode=True)
    try:
        result = work(module.params, module.check_mode)
    except (relay.StoreError, OSError) as error:
        module.fail_json(msg=str(error), changed=False, actions=[])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
