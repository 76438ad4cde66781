"""The image of a lab node: systemd, sshd, a Docker engine and the shims that let them live in a container."""

import shlex
import subprocess
import tempfile
from pathlib import Path

from lab import config, debootstrap, sources
from lab.engine import Engine, client
from lab.shell import LabError

PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "udev",
    "kmod",
    "python3",
    "python3-apt",
    "python3-pyudev",
    "python3-yaml",
    "openssh-server",
    "iproute2",
    "iputils-ping",
    "procps",
    "sudo",
    "netplan.io",
    "ethtool",
    "lldpd",
    "ca-certificates",
    "docker.io",
    "docker-registry",
    "iptables",
    "rdma-core",
    "curl",
)
# From trixie on the client and the builder are packages of their own.
_SPLIT_DOCKER = {"trixie": ["docker-cli", "docker-buildx"], "noble": ["docker-buildx"]}
REPOSITORY = "sparkmesh-lab/node"


def packages(suite: str) -> list[str]:
    """What a node of this suite has installed; nodes reach no mirror, so roles find here all they may ask for."""
    return [*PACKAGES, *_SPLIT_DOCKER.get(suite, [])]


def ensure(engine: Engine) -> tuple[str, str]:
    """Return the image reference and how it came to be: there already, from the cache, or built."""
    suite, source = sources.for_nodes()
    files = [path for path in config.NODE_FILES.iterdir() if path.is_file()]
    name = debootstrap.key([suite, packages(suite)], files)
    reference = f"{REPOSITORY}:{name}"
    if engine.attempt("image", "inspect", reference).returncode == 0:
        return reference, "present"
    archive = config.cache_dir() / f"node-{name}.tar.zst"
    how = "from cache"
    if not archive.exists():
        _build(archive, suite, source)
        how = "built"
    _import(engine, archive, reference)
    for other in engine.docker("images", "--format", "{{.Repository}}:{{.Tag}}", REPOSITORY).split():
        if other != reference:
            # Refused for an image that a container still uses, which is as it should be.
            engine.attempt("rmi", other)
    return reference, f"{how} ({archive.stat().st_size / 2**20:.0f} MiB)"


def _build(archive: Path, suite: str, source: str) -> None:
    log = config.state_dir() / "log" / "node-image.log"
    archive.parent.mkdir(parents=True, exist_ok=True)
    folder = shlex.quote(str(config.NODE_FILES))
    with tempfile.TemporaryDirectory(prefix="building-", dir=config.cache_dir()) as home:
        part = Path(home) / "node.tar.zst"
        tree = debootstrap.start(suite, source, packages(suite), log, [f'sh {folder}/customize "$1" {folder}'])
        packed = subprocess.run(["zstd", "-q", "-1", "-T0", "-o", str(part)], stdin=tree.stdout, check=False)
        debootstrap.finish(tree, log)
        if packed.returncode:
            raise LabError(f"zstd could not write {part} (status {packed.returncode})", "free disk space there")
        part.rename(archive)
    debootstrap.prune("node-*")


def _import(engine: Engine, archive: Path, reference: str) -> None:
    command = [client(), "-H", engine.host, "import"]
    for change in ('CMD ["/usr/local/sbin/lab-init"]', "ENV container=docker"):
        command += ["-c", change]
    with subprocess.Popen(["zstd", "-q", "-d", "-c", str(archive)], stdout=subprocess.PIPE) as unpack:
        done = subprocess.run([*command, "-", reference], stdin=unpack.stdout, capture_output=True, check=False)
    if done.returncode == 0 and unpack.returncode == 0:
        return
    # The engine takes a stream that breaks off for a whole image.
    engine.attempt("rmi", "--force", reference)
    said = done.stderr.decode(errors="replace").strip()
    raise LabError(
        f"docker import of {archive} failed (docker {done.returncode}, zstd {unpack.returncode}): {said}",
        f"free disk space under {config.state_dir()}, or remove {archive} so that it is built anew",
    )
