"""From a rank spec to the command line and the environment of vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sparkmesh_runtime.spec import Spec


def option(name: str, value: Any) -> list[str]:
    """Arguments for one structured option.

    Underscores become dashes. true is the bare flag; false its `--no-` form, because leaving it out would mean vLLM's
    default, not "off"; null leaves the option out. A list repeats values after one flag (argparse `nargs="+"`), an
    object becomes compact JSON.
    """
    flag = "--" + name.replace("_", "-")
    if value is None:
        return []
    if value is True:
        return [flag]
    if value is False:
        return ["--no-" + flag[2:]]
    if isinstance(value, list):
        return [flag, *(str(item) for item in value)]
    if isinstance(value, dict):
        return [flag, json.dumps(value, separators=(",", ":"), sort_keys=True)]
    return [flag, str(value)]


def vllm_argv(spec: Spec) -> list[str]:
    """The vLLM command of this rank. Options come in name order so that ranks can be compared line by line.

    One GPU a node, so the tensor-parallel size, `--nnodes` and the number of ranks are one number. Ranks other than 0
    run workers only (`--headless`). The API key is never here: vLLM reads it from VLLM_API_KEY.
    """
    argv = [
        "vllm",
        "serve",
        spec["model"]["path"],
        "--served-model-name",
        spec["model"]["name"],
        "--tensor-parallel-size",
        str(spec["size"]),
        "--distributed-executor-backend",
        "mp",
        "--nnodes",
        str(spec["size"]),
        "--node-rank",
        str(spec["rank"]),
        "--master-addr",
        spec["head"]["address"],
        "--master-port",
        str(spec["head"]["master_port"]),
    ]
    if spec["rank"] == 0:
        argv += ["--host", spec["api"]["host"], "--port", str(spec["api"]["port"])]
    else:
        argv.append("--headless")
    for name, value in sorted(spec["vllm"]["options"].items()):
        argv += option(name, value)
    return argv


def vllm_environment(spec: Spec, inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited` with the spec's environment over it; what one rank needs wins over what all share.

    VLLM_HOST_IP defaults to the control address: vLLM's message queue otherwise guesses an interface, and on a node
    with seven of them it guesses wrong.
    """
    return {**inherited, "VLLM_HOST_IP": spec["address"], **spec["environment"], **spec.get("node_environment", {})}
