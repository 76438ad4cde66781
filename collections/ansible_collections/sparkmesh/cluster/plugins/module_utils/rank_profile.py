"""The serving profile inside a rank spec: its shape, and everything wrong with one.

::

    {"name": "tp3-64k", "fabric_transport": "nccl" | "gloo", "master_port": 29501,
     "api": {"host": "0.0.0.0", "port": 8000}, "options": {vllm_option: value}, "environment": {NAME: "text"},
     "guard": {"start_floor_bytes", "start_period_s", "steady_floor_bytes", "steady_period_s"},
     "timeouts": {"start_s", "stop_s"},
     "tensor_parallel_size": 3}      # may be left out; if given, the number of ranks must be this one
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.nccl_profile import FORBIDDEN_IN_RING

TRANSPORTS = ("nccl", "gloo")
# The lower end of net.ipv4.ip_local_port_range: from there on an outgoing connection may hold the port.
FIRST_EPHEMERAL_PORT = 32768
FIRST_UNPRIVILEGED_PORT = 1024
# A guard that looks less often than this does not see a load phase fill the memory.
MAX_PERIOD_S = 10
# Options that the rank spec says elsewhere; a second place could contradict it.
OWNED_OPTIONS = {
    "model": "model.path",
    "model_tag": "model.path",
    "served_model_name": "model.name",
    "tensor_parallel_size": "the number of ranks",
    "distributed_executor_backend": "the launcher",
    "nnodes": "the number of ranks",
    "node_rank": "node_rank",
    "master_addr": "the address of rank 0",
    "master_port": "profile.master_port",
    "headless": "the rank",
    "host": "profile.api.host",
    "port": "profile.api.port",
    "api_key": "the secrets of the rank, never its spec",
}
# One GPU a node and tensor parallelism only: a ring has no cable for other exchanges, and the launcher counts nodes.
SINGLE_OPTIONS = ("pipeline_parallel_size", "data_parallel_size")
OWNED_ENVIRONMENT = ("VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")

_OPTION = re.compile(r"[a-z][a-z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(r"(API_KEY|_TOKEN|_SECRET|PASSWORD)$")
_INTEGER = re.compile(r"-?[0-9]+")

_Test = Callable[[Any], bool]


def _whole(value: Any) -> bool:
    return type(value) is int


def _port(value: Any) -> bool:
    return _whole(value) and 1 <= value <= 65535


def _below_ephemeral(value: Any) -> bool:
    return _whole(value) and FIRST_UNPRIVILEGED_PORT <= value < FIRST_EPHEMERAL_PORT


def _bytes(value: Any) -> bool:
    return _whole(value) and value > 0


def _period(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= MAX_PERIOD_S


def _ipv4(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.IPv4Address(value))
    except ipaddress.AddressValueError:
        return False


_PORTS = f"a port from {FIRST_UNPRIVILEGED_PORT} to {FIRST_EPHEMERAL_PORT - 1}, below the ephemeral range"
_SECONDS = f"seconds, more than 0 and at most {MAX_PERIOD_S}"
_LIMIT = "a whole number of seconds, 1 or more"
_SHAPE: dict[str, tuple[_Test, str]] = {
    "name": (lambda value: isinstance(value, str) and bool(value), "the profile's name"),
    "fabric_transport": (lambda value: value in TRANSPORTS, f"one of {', '.join(TRANSPORTS)}"),
    "master_port": (_below_ephemeral, _PORTS),
    "api": (lambda value: isinstance(value, Mapping), "a mapping with host and port"),
    "api.host": (_ipv4, "an IPv4 address, 0.0.0.0 for all"),
    "api.port": (_port, "a port from 1 to 65535"),
    "options": (lambda value: isinstance(value, Mapping), "a mapping of vLLM options"),
    "environment": (lambda value: isinstance(value, Mapping), "a mapping of variables to text"),
    "guard": (lambda value: isinstance(value, Mapping), "a mapping of floors and periods"),
    "guard.start_floor_bytes": (_bytes, "a whole number of bytes"),
    "guard.start_period_s": (_period, _SECONDS),
    "guard.steady_floor_bytes": (_bytes, "a whole number of bytes"),
    "guard.steady_period_s": (_period, _SECONDS),
    "timeouts": (lambda value: isinstance(value, Mapping), "a mapping with start_s and stop_s"),
    "timeouts.start_s": (_bytes, _LIMIT),
    "timeouts.stop_s": (_bytes, _LIMIT),
}
_OPTIONAL = ("tensor_parallel_size",)


def profile_problems(profile: Mapping[str, Any], size: int, topology: str | None) -> list[str]:
    """What keeps ``profile`` from serving on ``size`` ranks, one sentence each; empty if nothing does."""
    shape = list(_shape_problems(profile))
    if shape:
        return shape
    problems = [*_option_problems(profile["options"], size, topology)]
    problems += _environment_problems(profile["environment"], topology)
    asked = profile.get("tensor_parallel_size", size)
    if asked != size:
        problems.append(
            f"profile {profile['name']} is made for tensor_parallel_size {asked}, the group has {size} ranks: choose "
            "the profile for this number of nodes"
        )
    if profile["master_port"] == profile["api"]["port"]:
        problems.append(f"profile.master_port and profile.api.port are both {profile['master_port']}: change one")
    return problems


def _shape_problems(profile: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(profile, Mapping):
        yield f"profile is {profile!r}, wanted a mapping"
        return
    top = [key for key in _SHAPE if "." not in key]
    for key in profile:
        if key not in top and key not in _OPTIONAL:
            yield f"profile.{key} is unknown{_hint(key, top)}: remove it"
    for name, (test, wanted) in _SHAPE.items():
        parent, _dot, key = name.rpartition(".")
        holder = profile.get(parent) if parent else profile
        # A parent of the wrong kind has its own sentence.
        if isinstance(holder, Mapping):
            if key not in holder:
                yield f"profile.{name} is missing, wanted {wanted}"
            elif not test(holder[key]):
                yield f"profile.{name} is {holder[key]!r}, wanted {wanted}"
    for parent in ("api", "guard", "timeouts"):
        known = [key.partition(".")[2] for key in _SHAPE if key.startswith(f"{parent}.")]
        holder = profile.get(parent)
        for key in holder if isinstance(holder, Mapping) else ():
            if key not in known:
                yield f"profile.{parent}.{key} is unknown{_hint(key, known)}: remove it"


def _option_problems(options: Mapping[str, Any], size: int, topology: str | None) -> Iterator[str]:
    for name, value in options.items():
        where = f"profile.options.{name}"
        if not _OPTION.fullmatch(name):
            yield f"{where}: wanted vLLM's option name with underscores and no dashes, such as max_model_len"
        elif name in OWNED_OPTIONS:
            extra = f", {size} here" if name in ("tensor_parallel_size", "nnodes") else ""
            yield f"{where} is {value!r}, but it follows from {OWNED_OPTIONS[name]}{extra}: remove it"
        elif name in SINGLE_OPTIONS and value != 1:
            yield f"{where} is {value!r}, wanted 1: every rank is tensor parallel"
        elif name == "enable_expert_parallel" and value is True and topology == "ring":
            yield f"{where} is true, but a ring has no cable between opposite ranks for its all-to-all: remove it"
        elif not _option_value(value):
            yield f"{where} is {value!r}, wanted true/false, a number, text, a mapping, or a list of texts and numbers"


def _option_value(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(type(item) in (str, int, float) for item in value)
    return value is None or type(value) in (bool, int, float, str, dict)


def _environment_problems(environment: Mapping[str, Any], topology: str | None) -> Iterator[str]:
    for name, value in environment.items():
        where = f"profile.environment.{name}"
        if not _VARIABLE.fullmatch(name):
            yield f"{where}: wanted letters, digits and underscores"
        elif _SECRET.search(name):
            yield f"{where} names a secret, and a spec is readable and recorded: pass it in the rank's secrets"
        elif name in OWNED_ENVIRONMENT:
            yield f"{where} is {value!r}, but it differs from node to node and the plan sets it: remove it"
        elif not isinstance(value, str):
            yield f'{where} is {value!r}, wanted text: write {name}: "{str(value).lower()}"'
        elif name == "NCCL_IB_GID_INDEX" and not _INTEGER.fullmatch(value):
            yield f"{where} is {value!r}, which NCCL reads as 0, a RoCE v1 entry: write a whole number"
        elif name in FORBIDDEN_IN_RING and topology == "ring":
            yield f"{where} would replace the ring that the cables are: remove it"


def _hint(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f" (did you mean {close[0]}?)" if close else f" (known: {', '.join(known)})"
