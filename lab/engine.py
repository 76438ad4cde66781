"""The Docker engine under the lab: a running one that can carry it, or one of our own that touches nothing else."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lab import config
from lab.host import which
from lab.shell import LabError, attempt, run

# A private mount namespace where /sys/fs/cgroup is the pure cgroup2 tree: on a hybrid (v1 + v2) machine Docker inside
# the nodes fails without it. An empty /run/containerd makes dockerd start a containerd of its own, in this namespace.
_START = """
[ ! -d /run/containerd ] || mount -t tmpfs tmpfs /run/containerd || exit 90
if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
  umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit 91
fi
exec "$@"
"""
CGROUP = "sparkmesh-lab"
_OURS = ("dockerd", "containerd", "containerd-shim", "containerd-shim-runc-v2")


@dataclass(frozen=True)
class Engine:
    """An engine that answers at ``host`` (a DOCKER_HOST value); ``own`` when the lab started it."""

    host: str
    own: bool

    def docker(self, *arguments: str, stdin: str | None = None, timeout: float = 600) -> str:
        """Run the docker client; raises LabError when it fails."""
        return run([client(), *arguments], stdin=stdin, env=self.env, timeout=timeout)

    def attempt(self, *arguments: str, timeout: float = 600) -> "subprocess.CompletedProcess[str]":
        """Run the docker client and return its result whatever the exit status."""
        return attempt([client(), *arguments], env=self.env, timeout=timeout)

    @property
    def env(self) -> dict[str, str]:
        return {"DOCKER_HOST": self.host}


def client() -> str:
    """The distribution's client when there is one; another may stand before it in PATH without an engine."""
    if os.access("/usr/bin/docker", os.X_OK):
        return "/usr/bin/docker"
    found = which("docker")
    if found is None:
        raise LabError("no docker client found", "apt-get install docker.io")
    return found


def folder() -> Path:
    """Where our own engine keeps everything it has."""
    return config.state_dir() / "engine"


def _own() -> Engine:
    return Engine(f"unix://{folder()}/docker.sock", own=True)


def answers(engine: Engine) -> dict[str, object]:
    """``docker info`` as data; {} when no engine answers there."""
    if engine.host.startswith("unix://") and not Path(engine.host.removeprefix("unix://")).exists():
        return {}
    done = engine.attempt("info", "--format", "{{json .}}", timeout=20)
    if done.returncode:
        return {}
    info = json.loads(done.stdout)
    return info if isinstance(info, dict) and not info.get("ServerErrors") else {}


def unfit(info: dict[str, object]) -> str:
    """Why an engine with this ``docker info`` cannot carry the lab; empty when it can."""
    if str(info.get("CgroupVersion")) != "2":
        return f"it uses cgroup version {info.get('CgroupVersion')}, wanted 2 (Docker inside the nodes needs it)"
    if info.get("Driver") not in ("overlay2", "overlayfs"):
        return f"its storage driver is {info.get('Driver')}, wanted overlay2"
    if any("rootless" in str(option) for option in _list(info.get("SecurityOptions"))):
        return "it runs rootless, wanted one that may make network devices"
    return ""


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def find() -> Engine | None:
    """The engine the lab uses or would use, if one runs: ours first, then the machine's."""
    own = _own()
    if answers(own):
        return own
    other = Engine(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock", own=False)
    if other.host.startswith("unix://"):
        info = answers(other)
        if info and not unfit(info):
            return other
    return None


def ensure() -> tuple[Engine, str]:
    """Return an engine that answers, starting ours when there is no other; the text says which and why."""
    found = find()
    if found is not None:
        return found, "ours was running" if found.own else "the machine's engine serves"
    machine = answers(Engine("unix:///var/run/docker.sock", own=False))
    reason = f"started ours ({unfit(machine)})" if machine else "started ours"
    return _start(), reason


def _start() -> Engine:
    dockerd = which("dockerd")
    if dockerd is None:
        raise LabError("no Docker engine runs and dockerd is not installed", "apt-get install docker.io")
    home = folder()
    stop()
    home.mkdir(parents=True, exist_ok=True)
    settings = {
        "data-root": str(home / "data"),
        "pidfile": str(home / "dockerd.pid"),
        "hosts": [_own().host],
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "ip-forward": False,
        "ip-masq": False,
        "userland-proxy": False,
        "cgroup-parent": CGROUP,
        "log-level": "warn",
    }
    # A configuration of our own also keeps /etc/docker/daemon.json of the machine out.
    (home / "daemon.json").write_text(json.dumps(settings, indent=1))
    log = home / "dockerd.log"
    command = ["unshare", "-m", "--propagation", "slave", "sh", "-c", _START, "lab-engine"]
    # The exec root as an argument makes the process recognisable as ours; the file carries all the rest.
    command += [dockerd, "--config-file", str(home / "daemon.json"), "--exec-root", str(home / "exec")]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        info = answers(_own())
        if info:
            if unfit(info):
                stop()
                raise LabError(
                    f"our own Docker engine cannot carry the lab: {unfit(info)}",
                    "set SPARKMESH_LAB_DIR to a folder on ext4 or xfs",
                )
            return _own()
        if process.poll() is not None:
            break
        time.sleep(0.2)
    tail = "\n    ".join(log.read_text(errors="replace").splitlines()[-8:])
    status = process.poll()
    stop()
    raise LabError(
        f"Docker is installed but our engine did not start "
        f"({'no answer in 60 s' if status is None else f'exit status {status}'}):\n    {tail}",
        f"read {log}; 90/91 mean that this machine forbids mounts in a new mount namespace",
    )


def processes() -> dict[int, str]:
    """Process id -> program of everything that belongs to our engine, known by our exec root in its arguments."""
    marker = str(folder() / "exec")
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        program = Path(arguments[0]).name
        if program in _OURS and any(argument.startswith(marker) for argument in arguments[1:]):
            found[int(entry.name)] = program
    return found


def stop() -> None:
    """End our engine and everything it started, exactly; a machine's engine is left alone."""
    for wanted, sign in (
        (("dockerd",), signal.SIGTERM),
        (_OURS, signal.SIGTERM),
        (_OURS, signal.SIGKILL),
    ):
        victims = [pid for pid, program in processes().items() if program in wanted]
        for pid in victims:
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + 20
        while victims and time.monotonic() < deadline and set(victims) & set(processes()):
            time.sleep(0.1)
    for name in ("dockerd.pid", "docker.sock"):
        (folder() / name).unlink(missing_ok=True)
    for tree in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        try:
            (Path(tree) / CGROUP).rmdir()
        except OSError:
            continue
