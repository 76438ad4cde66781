"""Make a Debian tree as a tar stream, and name a build by everything that goes into it."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from lab import config
from lab.host import which
from lab.shell import LabError

# Time stamps later than this are set to it, so that the same packages give the same bytes.
EPOCH = "1735689600"
_KEPT = 3
_running: list[subprocess.Popen[bytes]] = []
_LEFT_OUT = ("man", "doc", "locale", "info", "lintian")


def key(parts: object, files: Iterable[Path] = ()) -> str:
    """First 16 hex digits of a SHA-256 over JSON-able ``parts`` and the names and contents of ``files``."""
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for path in sorted(files):
        digest.update(f"\0{path.name}\0{path.stat().st_mode & 0o111}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def start(
    suite: str, source: str, packages: Iterable[str], log: Path, hooks: Iterable[str] = ()
) -> subprocess.Popen[bytes]:
    """Start mmdebstrap; its standard output is the tree as tar. Give it to ``finish`` once read to the end."""
    program = which("mmdebstrap")
    if program is None:
        raise LabError("mmdebstrap is not installed", "apt-get install mmdebstrap")
    command = [program, "--mode=root", "--variant=minbase", "--format=tar", f"--include={','.join(packages)}"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
    command += ["--dpkgopt=path-exclude=/usr/lib/udev/hwdb.d/*"]
    command += [f"--customize-hook={hook}" for hook in hooks]
    command += [suite, "-", source]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=_environment()
        )
    _running.append(process)
    return process


def cancel() -> None:
    """End every mmdebstrap that runs; each removes the tree it was making."""
    for process in _running:
        if process.poll() is None:
            process.terminate()


def prune(pattern: str) -> None:
    """Keep the newest builds of a kind in the cache; clones of other versions may use one each."""
    found = sorted(config.cache_dir().glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[_KEPT:]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _environment() -> dict[str, str]:
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    return {**os.environ, "SOURCE_DATE_EPOCH": EPOCH, "PATH": path}


def finish(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for mmdebstrap; raise LabError with the end of its log when it failed."""
    if process.wait():
        tail = "\n    ".join(log.read_text(errors="replace").splitlines()[-8:])
        raise LabError(
            f"mmdebstrap ended with status {process.returncode}, wanted 0:\n    {tail}",
            f"read {log}; `apt-get update` shows whether this machine reaches its package source",
        )
