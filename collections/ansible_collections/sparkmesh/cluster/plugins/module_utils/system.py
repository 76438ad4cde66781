"""Reading a node and running commands on it: plain Python, no Ansible.

``run`` starts one command with a time limit. ``Reader`` looks at a node: the live one (root ``/``) or a recorded
tree, where command output comes from ``<root>/commands/<name>.txt``. What cannot be read is remembered in
``unobserved`` and is never replaced by a guess.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# EINVAL and EOPNOTSUPP are how sysfs says "this attribute has no value now" (speed of a link that is down, type of an
# empty GID slot); ENODEV is a device that went away between listing and reading.
_NO_VALUE = {errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.ENXIO}


@dataclass(frozen=True)
class Result:
    """A finished command: ``rc`` is its exit status, ``out`` and ``err`` are decoded text."""

    command: tuple[str, ...]
    rc: int
    out: str
    err: str

    def complaint(self) -> str:
        """The last lines the command said, for an error message."""
        said = (self.err.strip() or self.out.strip() or "it said nothing").splitlines()
        return " / ".join(line.strip() for line in said[-4:])


class CommandFailed(Exception):
    """A command that could not start (rc None), ran out of time (rc None) or exited with a status that was not 0."""

    def __init__(self, text: str, rc: int | None = None, missing: bool = False) -> None:
        super().__init__(text)
        self.rc = rc
        self.missing = missing


def run(
    command: Sequence[str],
    *,
    timeout: float = 60.0,
    check: bool = True,
    environment: Mapping[str, str] | None = None,
    stdin: str | None = None,
) -> Result:
    """Run one command without a shell; ``timeout`` is in seconds.

    Raises ``CommandFailed`` when it cannot start or runs out of time, and with ``check`` also when it exits with a
    status other than 0. The locale is always C, because output is parsed.
    """
    argv = tuple(command)
    shown = " ".join(argv)
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, **(environment or {}), "LC_ALL": "C.UTF-8", "LANGUAGE": ""},
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as problem:
        raise CommandFailed(f"`{shown}` cannot start: {argv[0]} is not installed", missing=True) from problem
    except subprocess.TimeoutExpired as problem:
        raise CommandFailed(f"`{shown}` did not end within {timeout:g} s and was stopped") from problem
    except OSError as problem:
        raise CommandFailed(f"`{shown}` cannot start: {problem.strerror}") from problem
    result = Result(argv, done.returncode, done.stdout, done.stderr)
    if check and result.rc != 0:
        raise CommandFailed(f"`{shown}` ended with status {result.rc}, wanted 0: {result.complaint()}", rc=result.rc)
    return result


Runner = Callable[..., Result]


def write_file(path: Path, content: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Replace a file in one step (temporary file, fsync, rename), so that a power cut leaves the old or the new one.

    ``owner`` is (uid, gid); None leaves the file to whoever runs this.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            if owner is not None:
                os.fchown(stream.fileno(), *owner)
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Reader:
    """Reads one node. ``root`` other than ``/`` is a recorded tree; then no command ever runs.

    A ``key`` given to a method names what is lost when the read fails ("host.boot_id"); it lands in ``unobserved``.
    """

    def __init__(self, root: str | Path = "/", runner: Runner = run) -> None:
        self.root = Path(root)
        self.live = str(self.root) == "/"
        self.unobserved: list[str] = []
        self._runner = runner

    def path(self, path: str) -> Path:
        """Where ``path`` of the node lies for us."""
        return self.root / path.lstrip("/")

    def miss(self, key: str | None) -> None:
        """Record that ``key`` could not be observed."""
        if key is not None and key not in self.unobserved:
            self.unobserved.append(key)

    def text(self, path: str, key: str | None = None, *, absent_ok: bool = False) -> str | None:
        """The stripped text of a file, or None. With ``absent_ok`` a missing value is an answer, not a lost one."""
        try:
            return self.path(path).read_bytes().decode(errors="replace").strip("\x00 \t\r\n")
        except OSError as problem:
            if not (absent_ok and problem.errno in _NO_VALUE):
                self.miss(key)
            return None

    def number(self, path: str, key: str | None = None, *, absent_ok: bool = False) -> int | None:
        """The decimal number in a file, or None; text that is no number counts as unobserved."""
        text = self.text(path, key, absent_ok=absent_ok)
        if text is None:
            return None
        try:
            return int(text)
        except ValueError:
            self.miss(key)
            return None

    def names(self, path: str, key: str | None = None, *, absent_ok: bool = False) -> list[str]:
        """The names in a directory: numbers in numeric order first, then the rest alphabetically."""
        try:
            found = [entry.name for entry in self.path(path).iterdir()]
        except OSError as problem:
            if not (absent_ok and problem.errno in _NO_VALUE):
                self.miss(key)
            return []
        # Neither sysfs nor we use hidden names; a recorded tree needs one to keep an empty directory.
        found = [name for name in found if not name.startswith(".")]
        return sorted(found, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))

    def exists(self, path: str) -> bool:
        """Whether ``path`` is there (a dangling link is)."""
        return os.path.lexists(self.path(path))

    def link(self, path: str) -> str | None:
        """The last part of a symbolic link's target (how sysfs names a driver or a device), or None."""
        try:
            return self.path(path).readlink().name
        except OSError:
            return None

    def command(
        self, name: str, argv: Sequence[str], key: str | None = None, *, absent_ok: bool = False, timeout: float = 20.0
    ) -> str | None:
        """The output of a command: run on a live node, replayed from ``commands/<name>.txt`` on a recorded one.

        None when it failed; with ``absent_ok`` a program that is not installed is an answer, not a lost one.
        """
        if not self.live:
            return self.text(f"commands/{name}.txt", key, absent_ok=absent_ok)
        try:
            return self._runner(argv, timeout=timeout).out
        except CommandFailed as problem:
            if not (absent_ok and problem.missing):
                self.miss(key)
            return None


def container_of(reader: Reader) -> str | None:
    """The kind of container the node is ("docker", "oci", ...), or None on a real machine.

    systemd as PID 1 writes /run/systemd/container; engines leave their own marks; ``container=`` in the environment
    of PID 1 is the convention of systemd's container interface.
    """
    named = reader.text("/run/systemd/container", absent_ok=True)
    if named:
        return named
    for mark, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if reader.exists(mark):
            return kind
    for entry in (reader.text("/proc/1/environ", absent_ok=True) or "").split("\x00"):
        if entry.startswith("container=") and len(entry) > len("container="):
            return entry.removeprefix("container=")
    return None
