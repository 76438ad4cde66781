"""The relay as a systemd transient unit: install relay.py on the node, start it, stop it."""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ansible_collections.sparkmesh.cluster.plugins.module_utils import relay
from ansible_collections.sparkmesh.cluster.plugins.module_utils.progress import write_text
from ansible_collections.sparkmesh.cluster.plugins.module_utils.relay import StoreError
from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import CommandFailed, Result, run

UNIT = "sparkmesh-relay.service"
PROGRAM = "/usr/local/lib/sparkmesh/relay.py"
TOKEN = "/run/sparkmesh/relay.token"


@dataclass(frozen=True)
class Service:
    """How the relay shall run; idle is the seconds without a request after which it stops by itself."""

    root: str
    addresses: tuple[str, ...]
    port: int
    token: str
    idle: float
    program: str = PROGRAM
    token_file: str = TOKEN

    def argv(self) -> list[str]:
        listen = [word for address in self.addresses for word in ("--listen", relay.listen_address(address))]
        return [
            sys.executable,
            self.program,
            "--root",
            self.root,
            *listen,
            "--port",
            str(self.port),
            "--token-file",
            self.token_file,
            "--idle",
            str(self.idle),
        ]

    def description(self) -> str:
        """The unit's description carries what it was started with, so that a second run can tell."""
        mark = hashlib.sha256(json.dumps([source(), self.argv()]).encode()).hexdigest()[:16]
        return f"sparkmesh model relay {mark}"


def source() -> str:
    """The text of relay.py as this very module was shipped: from the folder, or from Ansible's module archive."""
    spec = find_spec(relay.__name__)
    get_source = getattr(spec.loader if spec else None, "get_source", None)
    text = get_source(relay.__name__) if get_source else None
    if not text:
        raise StoreError(f"the source of {relay.__name__} cannot be read from its loader; wanted to install {PROGRAM}")
    return str(text)


def _command(*argv: str) -> Result:
    try:
        return run(argv, check=False)
    except CommandFailed as error:
        raise StoreError(f"{error}; the relay runs as a systemd unit") from error


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def running() -> str:
    """The description of the running relay unit, "" when it does not run."""
    shown = _command("systemctl", "show", "--property=ActiveState,Description", UNIT)
    values = dict(line.split("=", 1) for line in shown.out.splitlines() if "=" in line)
    return values.get("Description", "") if values.get("ActiveState") in ("active", "activating", "reloading") else ""


def plan(service: Service) -> list[str]:
    """What `serve` would do, in words; empty when the relay already runs so."""
    if len(service.token) < 16:
        raise StoreError(f"relay token: seen {len(service.token)} characters, wanted at least 16 random ones")
    if not service.addresses:
        raise StoreError("relay addresses: none given; wanted the fabric addresses of this node")
    wanted = service.description()
    steps = []
    if _read(service.program) != source():
        steps.append(f"install {service.program}")
    try:
        seen = running()
    except StoreError:
        seen = ""
    if seen != wanted or steps or _read(service.token_file) != service.token:
        steps.append(f"{'restart' if seen else 'start'} {UNIT} on {', '.join(service.addresses)} port {service.port}")
    return steps


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1.0):
            return True
    except OSError:
        return False


def serve(service: Service, wait: float = 20.0) -> list[str]:
    """Have the relay running on every address; returns what was done. Raises StoreError with the unit's last words."""
    steps = plan(service)
    if not steps:
        return steps
    write_text(Path(service.program), source(), 0o755)
    _command("systemctl", "stop", UNIT)
    _command("systemctl", "reset-failed", UNIT)
    write_text(Path(service.token_file), service.token, 0o600)
    started = _command(
        "systemd-run",
        f"--unit={UNIT}",
        f"--description={service.description()}",
        "--collect",
        "--property=NoNewPrivileges=yes",
        "--property=CapabilityBoundingSet=CAP_DAC_READ_SEARCH",
        "--property=Nice=5",
        *service.argv(),
    )
    if started.rc:
        raise StoreError(f"systemd-run of {UNIT}: {started.complaint()}")
    deadline = time.monotonic() + wait
    while silent := [address for address in service.addresses if not _answers(address, service.port)]:
        if time.monotonic() > deadline or not running():
            words = _command("journalctl", "--unit", UNIT, "--lines=5", "--output=cat", "--no-pager").out.strip()
            _command("systemctl", "stop", UNIT)
            raise StoreError(
                f"{UNIT} does not answer on {', '.join(silent)} port {service.port}: {words or 'it said nothing'}"
            )
        time.sleep(0.1)
    return steps


def unserve(token_file: str = TOKEN, *, check: bool = False) -> list[str]:
    """Stop the relay and forget its token; returns what was (with `check`: would be) done."""
    steps = []
    if running():
        steps.append(f"stop {UNIT}")
    if Path(token_file).exists():
        steps.append(f"remove {token_file}")
    if steps and not check:
        stopped = _command("systemctl", "stop", UNIT)
        if stopped.rc and running():
            raise StoreError(f"systemctl stop {UNIT}: {stopped.complaint()}")
        if Path(token_file).exists():
            Path(token_file).unlink()
    return steps
