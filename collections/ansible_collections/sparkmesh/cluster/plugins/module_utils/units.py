"""The texts of the two systemd units of a rank: plain functions of the rank spec."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

RANK_UNIT, GUARD_UNIT, CONTAINER = "sparkmesh-rank.service", "sparkmesh-guard.service", "sparkmesh-rank"
SPEC_PATH, ENV_PATH = "/etc/sparkmesh/rank.json", "/etc/sparkmesh/rank.env"
GUARD_PATH, READY_PATH = "/usr/local/lib/sparkmesh/guard.py", "/run/sparkmesh/ready"
RELEASE_LABEL, CONFIG_LABEL = "sparkmesh.release", "sparkmesh.config"
# What `docker stop` needs beyond its own timeout to kill, detach and remove.
STOP_SLACK_S = 30


def quote(argument: str) -> str:
    """One argument of an Exec line: quoted where needed, with systemd's own `%` and `$` made literal.

    Raises ValueError for a line break: systemd would read the rest as another directive.
    """
    if "\n" in argument or "\r" in argument:
        raise ValueError(f"argument {argument!r} has a line break, wanted one line; fix: the container arguments")
    text = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = text and not any(character in text for character in " \t'\";")
    return text if plain else f'"{text}"'


def config_digest(spec: Mapping[str, Any], container_args: Sequence[str], model_root: str) -> str:
    """12 hex digits over everything a running container was started with. Secrets are not in it."""
    document = json.dumps([spec, list(container_args), model_root], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(document.encode()).hexdigest()[:12]


def container_command(spec: Mapping[str, Any], container_args: Sequence[str], model_root: str) -> list[str]:
    """The docker command of a rank. No secret is in it; those come from the environment file.

    The log goes to the journal only: docker's own copy would grow without bound.
    """
    return [
        "/usr/bin/docker",
        "run",
        "--rm",
        "--name",
        CONTAINER,
        "--network",
        "host",
        "--ipc",
        "host",
        "--log-driver",
        "none",
        "--security-opt",
        "no-new-privileges",
        "--label",
        f"{RELEASE_LABEL}={spec['release']}",
        "--label",
        f"{CONFIG_LABEL}={config_digest(spec, container_args, model_root)}",
        "--env",
        f"SPARKMESH_RELEASE={spec['release']}",
        "--env",
        f"SPARKMESH_IMAGE_IDENTITY={spec['image']['identity']}",
        "--env-file",
        ENV_PATH,
        "-v",
        f"{model_root}:/models:ro",
        "-v",
        f"{SPEC_PATH}:{SPEC_PATH}:ro",
        *container_args,
        spec["image"]["reference"],
        "sparkmesh-rank",
        SPEC_PATH,
    ]


def rank_unit(spec: Mapping[str, Any], container_args: Sequence[str], model_root: str) -> str:
    """sparkmesh-rank.service."""
    command = " ".join(quote(part) for part in container_command(spec, container_args, model_root))
    stop_s = int(spec["timeouts"]["stop_s"])
    return f"""\
# Written by sparkmesh.cluster.rank for release {spec["release"]}; the next deploy replaces it.
[Unit]
Description=sparkmesh rank {int(spec["rank"])} of {int(spec["size"])}, release {spec["release"]}
After={GUARD_UNIT} docker.service network-online.target
Wants=network-online.target
Requires=docker.service
# Stronger than Requires=: a guard that dies by itself also takes the rank down, which is never left unguarded.
BindsTo={GUARD_UNIT}

[Service]
Type=exec
ExecStartPre=-/usr/bin/docker rm -f {CONTAINER}
ExecStartPre=-/usr/bin/rm -f {READY_PATH}
ExecStart={command}
ExecStop=-/usr/bin/docker stop -t {stop_s} {CONTAINER}
ExecStopPost=-/usr/bin/docker rm -f {CONTAINER}
ExecStopPost=-/usr/bin/rm -f {READY_PATH}
# ExecStop ends the container; the docker client then ends by itself and is only killed when it does not.
KillMode=mixed
TimeoutStopSec={stop_s + STOP_SLACK_S}
# A tensor-parallel group is one failure domain: a rank that comes back alone finds peers in the middle of a dead
# collective, so whoever restarts it restarts the whole group. For the same reason there is no [Install] section.
Restart=no
"""


def guard_unit() -> str:
    """sparkmesh-guard.service; its limits come from the rank spec at every start."""
    return f"""\
# Written by sparkmesh.cluster.rank; the next deploy replaces it.
[Unit]
Description=sparkmesh memory guard
Before={RANK_UNIT}

[Service]
# Started means that the first good sample was taken.
Type=notify
NotifyAccess=main
RuntimeDirectory=sparkmesh
# Progress files of other tasks live in the same directory.
RuntimeDirectoryPreserve=yes
ExecStart=/usr/bin/python3 {GUARD_PATH} --spec {SPEC_PATH} --ready {READY_PATH}
# A guard that hangs guards nothing; systemd ends it, and with it the rank.
WatchdogSec=60
TimeoutStartSec=60
# It has to act when nothing else gets memory or time.
OOMScoreAdjust=-1000
MemoryMin=64M
CPUWeight=1000
Restart=no
"""
