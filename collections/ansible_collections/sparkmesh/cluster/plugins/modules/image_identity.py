#!/usr/bin/python
"""Ansible module: one image with one identity on every node. All of its logic is in module_utils."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_identity
short_description: Probe, build, push and pull one image by its content identity
description:
  - The identity is a hash over platform, layers and configuration, never the image id or a repository digest.
  - Check mode says what would happen, also on a node that has no container engine yet.
options:
  name:
    description: Name of the image in the registry.
    type: str
    required: true
  state:
    description:
      - V(probed) reports.
      - V(built) builds O(files) unless the image with O(source_id) is here.
      - V(pushed) pushes it unless the registry holds it.
      - V(pulled) pulls O(digest) and proves O(identity).
    type: str
    choices: [probed, built, pushed, pulled]
    default: probed
  registry:
    description: Address of the registry as this node reaches it.
    type: str
    default: 127.0.0.1:5000
  files:
    description: The whole build context, relative path to text, with a Dockerfile.
    type: dict
  build_args:
    description: Build arguments. They are visible in the image; no secrets.
    type: dict
    default: {}
  source_id:
    description: Identity of the sources; needed for V(built) and V(pushed).
    type: str
    default: ''
  digest:
    description: Manifest digest; needed for V(pulled).
    type: str
    default: ''
  identity:
    description: Expected identity; needed for V(pulled).
    type: str
    default: ''
  builder:
    description: Which builder of docker.
    type: str
    choices: [classic, buildkit]
    default: classic
  network:
    description: Network of the build steps.
    type: str
    default: default
  min_free_bytes:
    description: Bytes that must be free before a build or a pull.
    type: int
    default: 2147483648
  retries:
    description: Further tries of a pull.
    type: int
    default: 5
  delay_s:
    description: Seconds before the second try; doubles after each.
    type: float
    default: 2
  timeout_s:
    description: Seconds after which a build, a push or one try of a pull is stopped.
    type: int
    default: 7200
  build_root:
    description: Where build contexts are kept.
    type: path
    default: /var/lib/sparkmesh/build
  log:
    description: The build log.
    type: path
    default: /var/log/sparkmesh/image-build.log
author:
  - sparkmesh
"""

EXAMPLES = r"""
- name: The same image on every node
  sparkmesh.cluster.image_identity:
    name: sparkmesh
    state: pulled
    digest: "{{ pushed.digest }}"
    identity: "{{ built.identity }}"
"""

RETURN = r"""
actions: {description: What changed or would change in words., returned: always, type: list, elements: str}
present: {description: The image is here., returned: success, type: bool}
identity: {description: Identity of the image or empty., returned: success, type: str}
source_id: {description: Source label of the image or empty., returned: success, type: str}
digest: {description: Manifest digest in the registry or empty., returned: success, type: str}
reference: {description: Name by digest or empty., returned: success, type: str}
unobserved: {description: What could not be observed and why., returned: success, type: list, elements: str}
seconds: {description: Duration of the work., returned: success, type: float}
step: {description: The failing build step., returned: failure, type: str}
log_tail: {description: Last lines of the failed command., returned: failure, type: list, elements: str}
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmesh.cluster.plugins.module_utils import image_identity as ident
from ansible_collections.sparkmesh.cluster.plugins.module_utils import image_transfer as transfer
from ansible_collections.sparkmesh.cluster.plugins.module_utils.progress import Progress

SPEC: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "default": "probed", "choices": ["probed", "built", "pushed", "pulled"]},
    "registry": {"type": "str", "default": "127.0.0.1:5000"},
    "files": {"type": "dict"},
    "build_args": {"type": "dict", "default": {}},
    "source_id": {"type": "str", "default": ""},
    "digest": {"type": "str", "default": ""},
    "identity": {"type": "str", "default": ""},
    "builder": {"type": "str", "default": "classic", "choices": ["classic", "buildkit"]},
    "network": {"type": "str", "default": "default"},
    "min_free_bytes": {"type": "int", "default": 2 << 30},
    "retries": {"type": "int", "default": 5},
    "delay_s": {"type": "float", "default": 2.0},
    "timeout_s": {"type": "int", "default": 7200},
    "build_root": {"type": "path", "default": transfer.BUILD_ROOT},
    "log": {"type": "path", "default": transfer.BUILD_LOG},
}
REQUIRED_IF = [("state", "built", ["files"])]
NEEDED = {"built": ("source_id",), "pushed": ("source_id",), "pulled": ("digest", "identity")}


def work(params: dict[str, Any], check_mode: bool, say: transfer.Say) -> dict[str, Any]:
    """Bring about the state and return the module's result; raises ImageError."""
    repo, state = ident.repository(params["registry"], params["name"]), params["state"]
    for key in () if check_mode else NEEDED.get(state, ()):
        if not params[key]:
            raise ident.ImageError(f"{key}: none given, state {state} needs it")
    unobserved: list[str] = []
    try:
        inspect = ident.find(repo, params["source_id"], params["digest"] if state in ("probed", "pulled") else "")
    except ident.NoEngine as error:
        if state != "probed" and not check_mode:
            raise
        inspect, unobserved = None, [str(error)]
    result = (
        {"built": _built, "pushed": _pushed, "pulled": _pulled}[state](params, check_mode, say, repo, inspect)
        if state != "probed"
        else {"changed": False, "actions": [], **ident.describe(inspect, repo, params["digest"])}
    )
    return {**result, "unobserved": unobserved}


def _built(
    params: dict[str, Any], check_mode: bool, say: transfer.Say, repo: str, inspect: dict[str, Any] | None
) -> dict[str, Any]:
    if inspect is not None:
        return {"changed": False, "actions": [], **ident.describe(inspect, repo)}
    folder = Path(params["build_root"], params["name"])
    result: dict[str, Any] = {"changed": True, "diff": transfer.context_diff(folder, params["files"])}
    if check_mode:
        names = [each["after_header"] for each in result["diff"]]
        text = f"would build {repo} from {len(params['files'])} files"
        text += f", changed: {', '.join(names)}" if names else ""
        return {**result, "actions": [text], **ident.describe(None, repo)}
    touched = transfer.write_context(folder, params["files"])
    ident.require_space([str(folder)], params["min_free_bytes"])
    inspect = transfer.build(
        repo,
        params["source_id"],
        folder,
        {key: str(value) for key, value in params["build_args"].items()},
        builder=params["builder"],
        network=params["network"],
        log=params["log"],
        timeout=params["timeout_s"],
        say=say,
    )
    return {
        **result,
        **ident.describe(inspect, repo),
        "actions": [f"wrote {len(touched)} context files", f"built {repo}:{ident.short_source(params['source_id'])}"],
    }


def _pushed(
    params: dict[str, Any], check_mode: bool, say: transfer.Say, repo: str, inspect: dict[str, Any] | None
) -> dict[str, Any]:
    registry, name, source_id = params["registry"], params["name"], params["source_id"]
    if inspect is None:
        if check_mode:
            return {"changed": True, "actions": [f"would push {repo} once it is built"], **ident.describe(None, repo)}
        raise ident.ImageError(f"{repo} with source {source_id} is not on this node; build it first (state built)")
    try:
        digest = transfer.in_registry(registry, name, source_id, inspect)
    except ident.ImageError:
        if not check_mode:
            raise
        digest = ""
    if digest:
        return {"changed": False, "actions": [], **ident.describe(inspect, repo, digest)}
    if check_mode:
        return {"changed": True, "actions": [f"would push {repo}"], **ident.describe(inspect, repo)}
    digest = transfer.push(registry, name, source_id, inspect, timeout=params["timeout_s"], say=say)
    return {"changed": True, "actions": [f"pushed {repo}@{digest}"], **ident.describe(inspect, repo, digest)}


def _pulled(
    params: dict[str, Any], check_mode: bool, say: transfer.Say, repo: str, inspect: dict[str, Any] | None
) -> dict[str, Any]:
    digest, identity = params["digest"], params["identity"]
    actions: list[str] = []
    if inspect is None or not digest or ident.identity_of_inspect(inspect) != identity:
        if check_mode:
            what = f"{repo}@{digest}" if digest else f"{repo}, whose digest is not known yet"
            return {"changed": True, "actions": [f"would pull {what}"], **ident.describe(None, repo)}
        ident.require_space([], params["min_free_bytes"])
        inspect = transfer.pull(
            repo,
            digest,
            identity,
            retries=params["retries"],
            delay=params["delay_s"],
            timeout=params["timeout_s"],
            say=say,
        )
        actions.append(f"pulled {repo}@{digest}")
    if not check_mode:
        actions += transfer.tag_source(f"{repo}@{digest}", repo, inspect)
    return {"changed": bool(actions), "actions": actions, **ident.describe(inspect, repo, digest)}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, required_if=REQUIRED_IF, supports_check_mode=True)
    began, progress = time.monotonic(), Progress("image")
    try:
        result = work(module.params, module.check_mode, progress.say)
    except (ident.ImageError, OSError) as error:
        module.fail_json(
            msg=str(error),
            changed=False,
            actions=[],
            step=getattr(error, "step", ""),
            log_tail=getattr(error, "tail", []),
        )
    if result["changed"] and not module.check_mode:
        progress.say(1, 1, result["actions"][-1])
    module.exit_json(seconds=round(time.monotonic() - began, 3), **result)


if __name__ == "__main__":
    main()
