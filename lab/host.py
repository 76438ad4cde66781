"""What this machine must have before a lab can start here."""

import os
import shutil
from pathlib import Path

from lab.shell import LabError, attempt, run

# Program -> Debian package that brings it.
TOOLS = {
    "dockerd": "docker.io",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "zstd": "zstd",
    "ip": "iproute2",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
}
# Bit numbers from linux/capability.h.
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}
SEARCH = "/usr/local/sbin:/usr/sbin:/sbin"


def which(program: str) -> str | None:
    """Find a program, also in the folders that an ordinary user's PATH leaves out."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{SEARCH}")


def missing_capabilities(status: str) -> list[str]:
    """Capabilities that the text of ``/proc/self/status`` does not grant; [] when it has no CapEff line."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            granted = int(line.split()[1], 16)
            return [name for name, bit in CAPABILITIES.items() if not granted >> bit & 1]
    return []


def require_privileges() -> None:
    """Raise LabError unless this process may make namespaces, mounts and links."""
    if os.geteuid() != 0:
        raise LabError(
            f"the lab makes network namespaces and mounts: it ran as uid {os.geteuid()}, wanted 0",
            "run it with sudo",
        )
    lacking = missing_capabilities(Path("/proc/self/status").read_text())
    if lacking:
        raise LabError(
            f"root lacks {', '.join(lacking)} here (a container without privileges?)",
            "run the lab on a machine or VM, or start this container with those capabilities",
        )
    probe = attempt(["unshare", "-m", "true"])
    if probe.returncode:
        raise LabError(
            f"`unshare -m true` ended with status {probe.returncode}: {probe.stderr.strip()}",
            "allow mount namespaces (seccomp or AppArmor of the surrounding container forbids them)",
        )


def require_disk(folder: Path, wanted_gib: float) -> float:
    """Return the GiB free under ``folder``; raise LabError when there are fewer than ``wanted_gib``."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free / 2**30
    if free < wanted_gib:
        raise LabError(
            f"{folder} has {free:.1f} GiB free, wanted {wanted_gib:g} GiB",
            "free some, set SPARKMESH_LAB_DIR to a folder on a larger disk, "
            "or set SPARKMESH_LAB_DISK_GIB to what you know to be enough",
        )
    return free


def ensure_tools() -> list[str]:
    """Install the packages whose programs are missing; return their names."""
    packages = [package for program, package in TOOLS.items() if which(program) is None]
    if not packages:
        return []
    if which("apt-get") is None:
        raise LabError(f"missing programs of {', '.join(packages)}, and this machine has no apt-get", "install them")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-qq"], env=quiet)
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], env=quiet)
    return packages
