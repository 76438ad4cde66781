"""The nodes: for each one container that keeps its network namespace and one that runs systemd in it."""

import json
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab import config
from lab.config import Node
from lab.engine import Engine
from lab.shell import LabError, attempt, run

# Everything root may do except what would reach the whole machine (its clock, its ports and memory) or what root may
# lack here (CAP_SYS_RESOURCE; asking for it makes the engine refuse the container).
_NODE_FLAGS = (
    "--cap-add=ALL",
    *(f"--cap-drop={name}" for name in ("SYS_RESOURCE", "SYS_TIME", "SYS_RAWIO")),
    *(f"--security-opt={name}=unconfined" for name in ("seccomp", "apparmor", "systempaths")),
    "--cgroupns=private",
    "--stop-signal=SIGRTMIN+3",
    "--tmpfs=/run:exec",
    "--tmpfs=/run/lock",
    "--volume=/var/lib/docker",
    # vLLM's ranks talk to their engine through shared memory and want 160 MiB; a Spark has half its memory there.
    "--shm-size=2g",
    "--restart=always",
)
_HOLDER_FLAGS = ["--restart", "always", "--stop-signal", "KILL"]
_HOLDER_COMMAND = ["/usr/bin/sleep", "infinity"]
_READY_S = 120.0


def key_file() -> Path:
    """The private key that opens every node."""
    return config.state_dir() / "ssh" / "id_ed25519"


def known_hosts() -> Path:
    """The nodes' host keys, read from the nodes themselves."""
    return config.state_dir() / "known_hosts"


def ensure_key() -> str:
    """Make the lab's key pair if there is none; return the public half."""
    private = key_file()
    if not private.exists():
        private.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "sparkmesh-lab", "-f", str(private)])
    return private.with_suffix(".pub").read_text().strip()


def ensure_network(engine: Engine) -> str:
    """The management network: host and nodes, nothing else."""
    if engine.attempt("network", "inspect", config.NETWORK).returncode == 0:
        return "present"
    engine.docker(
        "network", "create", "--internal", "--subnet", config.SUBNET, "--gateway", config.HOST_ADDRESS,
        "--label", f"{config.LABEL}=1", "--opt", f"com.docker.network.bridge.name={config.BRIDGE}", config.NETWORK,
    )  # fmt: skip
    return "created"


def inspect(engine: Engine, names: Sequence[str]) -> dict[str, dict[str, object]]:
    """Container name -> what ``docker inspect`` says; absent containers are left out."""
    done = engine.attempt("container", "inspect", *names)
    found = json.loads(done.stdout or "[]")
    return {str(entry["Name"]).lstrip("/"): entry for entry in found}


def all_containers(engine: Engine) -> list[str]:
    """Names of every container of the lab, running or not."""
    listed = engine.docker("ps", "--all", "--filter", f"label={config.LABEL}", "--format", "{{.Names}}")
    return sorted(listed.split())


def _text(entry: dict[str, object], *path: str) -> str:
    value: object = entry
    for name in path:
        value = value.get(name, "") if isinstance(value, dict) else ""
    return str(value)


def _bring_up(engine: Engine, name: str, spec: str, arguments: Sequence[str], stale: str = "") -> str:
    """Make the container ``name`` run as ``spec`` says; return what had to be done ('' for nothing)."""
    present = inspect(engine, [name]).get(name)
    if present is not None:
        labels = present.get("Config", {})
        seen = _text(labels if isinstance(labels, dict) else {}, "Labels", config.LABEL)
        if seen == spec and not stale:
            if _text(present, "State", "Status") in ("running", "restarting"):
                return ""
            if _text(present, "State", "Status") == "paused":
                engine.docker("unpause", name)
            else:
                engine.docker("start", name)
            return f"started {name}"
        engine.docker("rm", "--force", "--volumes", name)
    engine.docker("run", "--detach", "--name", name, "--label", f"{config.LABEL}={spec}", *arguments)
    return f"made {name}" if present is None else f"made {name} again ({stale or 'its image or key changed'})"


def ensure_panel(engine: Engine, image: str) -> str:
    """The container whose namespace is the patch panel."""
    flags = [*_HOLDER_FLAGS, "--network", "none", "--sysctl", "net.ipv6.conf.default.disable_ipv6=1"]
    return _bring_up(engine, config.PANEL, image, [*flags, image, *_HOLDER_COMMAND])


def ensure_node(engine: Engine, node: Node, image: str, public_key: str) -> list[str]:
    """Make one node run; return what had to be done."""
    place = ["--network", config.NETWORK, "--ip", node.address, "--hostname", node.name]
    # An engine without IPv6 switches it off in its containers; a Spark has link-local addresses.
    place += [f"--sysctl=net.ipv6.conf.{scope}.disable_ipv6=0" for scope in ("all", "default")]
    did = [_bring_up(engine, node.pause, image, [*_HOLDER_FLAGS, *place, image, *_HOLDER_COMMAND])]
    found = inspect(engine, [node.pause, node.name])
    holder, itself = found[node.pause], found.get(node.name)
    stale = ""
    if itself is not None:
        if _text(itself, "HostConfig", "NetworkMode") != f"container:{_text(holder, 'Id')}":
            stale = "its network namespace was made again"
        elif _text(itself, "State", "StartedAt") < _text(holder, "State", "StartedAt"):
            engine.docker("stop", "--time", "1", node.name)
    environment = ["--env", f"LAB_HOSTNAME={node.name}", "--env", f"LAB_AUTHORIZED_KEY={public_key}"]
    arguments = ["--network", f"container:{node.pause}", *environment, *_NODE_FLAGS, image]
    did.append(_bring_up(engine, node.name, f"{image} {public_key}", arguments, stale))
    return [text for text in did if text]


def remove(engine: Engine, names: Sequence[str]) -> None:
    """Remove containers with their volumes."""
    if names:
        engine.docker("rm", "--force", "--volumes", *names)


def _await_node(engine: Engine, node: Node, deadline: float) -> tuple[str, str]:
    """Wait until systemd has started and sshd listens; return the host key and the state of systemd."""
    state = ""
    while time.monotonic() < deadline:
        done = engine.attempt("exec", node.name, "systemctl", "is-system-running", "--wait", timeout=_READY_S)
        state = done.stdout.strip() or done.stderr.strip()
        if state in ("running", "degraded"):
            try:
                socket.create_connection((node.address, 22), timeout=2).close()
            except OSError as error:
                state = f"sshd: {error}"
            else:
                if state == "degraded":
                    failed = engine.docker("exec", node.name, "systemctl", "list-units", "--failed", "--plain", "-q")
                    state = "degraded: " + ", ".join(line.split()[0] for line in failed.splitlines())
                return engine.docker("exec", node.name, "cat", "/etc/ssh/ssh_host_ed25519_key.pub"), state
        time.sleep(0.3)
    logs = engine.attempt("logs", "--tail", "5", node.name)
    raise LabError(
        f"{node.name} is not ready after {_READY_S:.0f} s: {state or 'no answer'} {(logs.stdout + logs.stderr)[-400:]}",
        f"docker -H {engine.host} exec {node.name} journalctl -b -p warning",
    )


def await_ready(engine: Engine, nodes: Sequence[Node]) -> list[str]:
    """Wait for all nodes, record their host keys, log in once each; return notes on nodes that are not fully well."""
    deadline = time.monotonic() + _READY_S
    with ThreadPoolExecutor(len(nodes)) as pool:
        answers = list(pool.map(lambda node: _await_node(engine, node, deadline), nodes))
        lines = [f"{node.address} {' '.join(key.split()[:2])}" for node, (key, _) in zip(nodes, answers, strict=True)]
        known_hosts().write_text("\n".join(lines) + "\n")
        list(pool.map(_log_in, nodes))
    return [f"{node.name} {state}" for node, (_, state) in zip(nodes, answers, strict=True) if state != "running"]


def ssh(node: Node, *command: str) -> list[str]:
    """The command line that runs something on a node the way Ansible will."""
    options = ["BatchMode=yes", f"UserKnownHostsFile={known_hosts()}", "StrictHostKeyChecking=yes", "ConnectTimeout=10"]
    flags = [part for option in options for part in ("-o", option)]
    return ["ssh", "-F", "none", "-i", str(key_file()), *flags, f"{config.USER}@{node.address}", *command]


def _log_in(node: Node) -> None:
    done = attempt(ssh(node, "sudo", "-n", "true"), timeout=30)
    if done.returncode:
        raise LabError(
            f"{node.name} runs, but `ssh {config.USER}@{node.address} sudo -n true` ended with status "
            f"{done.returncode}: {done.stderr.strip()}",
            "python -m lab down && python -m lab up",
        )
