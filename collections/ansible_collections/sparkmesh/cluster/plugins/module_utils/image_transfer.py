"""Build, push and pull one image with the docker command, with progress, a log and proof of the result."""

from __future__ import annotations

import collections
import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ansible_collections.sparkmesh.cluster.plugins.module_utils import image_identity as ident
from ansible_collections.sparkmesh.cluster.plugins.module_utils.image_identity import ImageError
from ansible_collections.sparkmesh.cluster.plugins.module_utils.progress import write_text

BUILD_ROOT = "/var/lib/sparkmesh/build"
BUILD_LOG = "/var/log/sparkmesh/image-build.log"
TAIL = 40
"""Lines of the build log that a failure returns."""

Say = Callable[[int, int, str], None]
_CLASSIC = re.compile(r"Step (\d+)/(\d+) : (.*)")
_BUILDKIT = re.compile(r"#(\d+) \[(?:[^\]]*? )?(\d+)/(\d+)\] (.*)")
_BUILDKIT_ERROR = re.compile(r"#(\d+) ERROR\b")
_LAYER = re.compile(r"([0-9a-f]{12}): (.*)")
_LAYER_DONE = ("Pull complete", "Already exists", "Pushed", "Layer already exists", "Mounted from")
_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64}) size: \d+")


def context_on_disk(folder: Path) -> dict[str, str]:
    """{relative path: text} of a build context as it lies on disk; undecodable bytes are replaced."""
    found = {}
    for full in folder.rglob("*"):
        path = full.relative_to(folder).as_posix()
        if full.is_symlink():
            found[path] = f"link to {full.readlink()}"
        elif full.is_file():
            found[path] = full.read_bytes().decode(errors="replace")
    return found


def context_diff(folder: Path, files: Mapping[str, str]) -> list[dict[str, str]]:
    """Ansible diff entries between the context on disk and `files`."""
    seen = context_on_disk(folder)
    return [
        {"before_header": path, "after_header": path, "before": seen.get(path, ""), "after": files.get(path, "")}
        for path in sorted({*seen, *files})
        if seen.get(path) != files.get(path)
    ]


def write_context(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Make `folder` hold exactly `files`; returns the paths written or removed. A text that starts with "#!" is
    executable. Raises ImageError for a path that leaves the context or when there is no Dockerfile."""
    for path in files:
        if Path(path).as_posix() != path or Path(path).is_absolute() or ".." in Path(path).parts or path == ".":
            raise ImageError(f"build file {path!r}: wanted a plain path inside the context")
    if "Dockerfile" not in files:
        raise ImageError("the build files have no Dockerfile; `files` is the whole build context")
    folder.mkdir(parents=True, exist_ok=True)
    seen, touched = context_on_disk(folder), []
    for path in sorted(set(seen) - set(files)):
        (folder / path).unlink()
        touched.append(path)
    for base in sorted((each for each in folder.rglob("*") if each.is_dir() and not each.is_symlink()), reverse=True):
        with contextlib.suppress(OSError):  # it still holds something
            base.rmdir()
    for path, text in sorted(files.items()):
        full, mode = folder / path, 0o755 if text.startswith("#!") else 0o644
        if seen.get(path) != text or full.is_symlink() or full.stat().st_mode & 0o777 != mode:
            write_text(full, text, mode)
            touched.append(path)
    return touched


@dataclass
class Lines:
    """Reads docker's output line by line: counts steps or layers, remembers the failing step and the last lines."""

    say: Say
    step: str = ""
    digest: str = ""
    tail: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=TAIL))
    _steps: dict[str, str] = field(default_factory=dict)
    _layers: dict[str, bool] = field(default_factory=dict)

    def read(self, line: str) -> None:
        self.tail.append(line)
        if match := _CLASSIC.match(line):
            self.step = line
            self.say(int(match[1]) - 1, int(match[2]), f"step {match[1]}: {match[3]}")
        elif match := _BUILDKIT.match(line):
            self._steps[match[1]] = self.step = f"Step {match[2]}/{match[3]} : {match[4]}"
            self.say(int(match[2]) - 1, int(match[3]), f"step {match[2]}: {match[4]}")
        elif match := _BUILDKIT_ERROR.match(line):
            self.step = self._steps.get(match[1], self.step)
        elif match := _LAYER.match(line):
            self._layers[match[1]] = self._layers.get(match[1], False) or match[2].startswith(_LAYER_DONE)
            done = sum(self._layers.values())
            self.say(done, len(self._layers), f"{done} of {len(self._layers)} layers")
        elif match := _PUSHED.search(line):
            self.digest = match[1]


def stream(
    argv: list[str],
    lines: Lines,
    *,
    timeout: float,
    environment: Mapping[str, str] | None = None,
    log: TextIO | None = None,
) -> int:
    """Run a long command and hand every output line to `lines` and `log`; returns its exit status.

    After `timeout` seconds its whole process group is ended and ImageError raised.
    """
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, **(environment or {}), "LC_ALL": "C.UTF-8"},
        )
    except FileNotFoundError as error:
        raise ident.NoEngine(f"{argv[0]} is not installed on this node; the host role installs it") from error
    late = threading.Event()

    def end() -> None:
        late.set()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)

    timer = threading.Timer(timeout, end)
    timer.start()
    try:
        assert child.stdout is not None
        for raw in child.stdout:
            line = raw.rstrip("\n")
            lines.read(line)
            if log is not None:
                log.write(line + "\n")
                log.flush()
        rc = child.wait()
    finally:
        timer.cancel()
        if child.poll() is None:
            end()
            child.wait()
    if late.is_set():
        raise ImageError(
            f"`{' '.join(argv[:3])} ...` was stopped after {timeout:.0f} s (timeout_s)", lines.step, list(lines.tail)
        )
    return rc


@contextlib.contextmanager
def build_log(path: str, title: str) -> Iterator[TextIO]:
    """A fresh build log; the one before it stays as `<path>.1`."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        Path(path).replace(path + ".1")
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {title}\n")
        yield log


def build(
    repo: str,
    source_id: str,
    folder: Path,
    build_args: Mapping[str, str],
    *,
    builder: str,
    network: str,
    log: str,
    timeout: float,
    say: Say,
) -> dict[str, Any]:
    """Build the context in `folder` as `<repo>:<short source id>`; returns its inspect entry, raises ImageError."""
    tag = f"{repo}:{ident.short_source(source_id)}"
    argv = ["docker", "build", "--tag", tag, "--label", f"{ident.SOURCE_LABEL}={source_id}"]
    argv += [] if network == "default" else ["--network", network]
    argv += ["--progress=plain"] if builder == "buildkit" else []
    argv += [word for key, value in sorted(build_args.items()) for word in ("--build-arg", f"{key}={value}")]
    lines = Lines(say)
    with build_log(log, f"docker build {tag}") as handle:
        rc = stream(
            [*argv, str(folder)],
            lines,
            timeout=timeout,
            log=handle,
            environment={"DOCKER_BUILDKIT": "1" if builder == "buildkit" else "0"},
        )
    if rc:
        raise ImageError(
            f"docker build {tag} ended with status {rc} at {lines.step or 'no step'}; the log is {log}",
            lines.step,
            list(lines.tail),
        )
    inspect = ident.find(repo, source_id)
    if inspect is None:
        raise ImageError(
            f"docker build ended well but {tag} with label {ident.SOURCE_LABEL}={source_id} is not here; "
            f"the log is {log}"
        )
    return inspect


def in_registry(registry: str, name: str, source_id: str, inspect: Mapping[str, Any]) -> str:
    """The digest under which the registry already holds exactly this image, "" if it does not.

    An image id is the config digest in the classic store and the manifest digest in the containerd store.
    """
    held = ident.registry_manifest(registry, name, ident.short_source(source_id))
    return held[0] if held and inspect.get("Id") in held else ""


def push(registry: str, name: str, source_id: str, inspect: Mapping[str, Any], *, timeout: float, say: Say) -> str:
    """Push the image; returns its manifest digest after reading it back from the registry."""
    tag, lines = f"{ident.repository(registry, name)}:{ident.short_source(source_id)}", Lines(say)
    rc = stream(["docker", "push", tag], lines, timeout=timeout)
    if rc:
        raise ImageError(
            f"docker push {tag} ended with status {rc}: {' / '.join(list(lines.tail)[-3:])}", tail=list(lines.tail)
        )
    digest = in_registry(registry, name, source_id, inspect)
    if not digest or lines.digest not in ("", digest):
        raise ImageError(
            f"{tag}: pushed as {lines.digest or 'an unnamed digest'}, but the registry now holds "
            f"{digest or 'another image'} there; another push runs at the same time"
        )
    return digest


def pull(
    repo: str, digest: str, identity: str, *, retries: int, delay: float, timeout: float, say: Say
) -> dict[str, Any]:
    """Pull `<repo>@<digest>` and prove its identity; returns the inspect entry. Each further try waits twice as long,
    at most 60 s. An image that is another than wanted is not tried again."""
    reference = f"{repo}@{ident.valid_digest(digest)}"
    for attempt in range(retries + 1):
        lines = Lines(say)
        if not (rc := stream(["docker", "pull", reference], lines, timeout=timeout)):
            break
        if attempt == retries:
            raise ImageError(
                f"docker pull {reference} ended with status {rc} after {attempt + 1} tries: "
                f"{' / '.join(list(lines.tail)[-3:])}",
                tail=list(lines.tail),
            )
        say(0, 1, f"try {attempt + 1} failed, again in {delay:.0f} s")
        time.sleep(delay)
        delay = min(2 * delay, 60.0)
    inspect = ident.inspect_image(reference)
    seen = ident.identity_of_inspect(inspect) if inspect else "nothing"
    if inspect is None or seen != identity:
        raise ImageError(
            f"{reference}: seen identity {seen}, wanted {identity}; the registry holds another image than "
            "the one that was built: push it again from the build node"
        )
    return inspect


def tag_source(reference: str, repo: str, inspect: Mapping[str, Any]) -> list[str]:
    """Tag a pulled image as the build node tags it; returns what was done."""
    source_id = ident.labels(inspect).get(ident.SOURCE_LABEL, "")
    tag = f"{repo}:{ident.short_source(source_id)}" if source_id else ""
    if not tag or tag in (inspect.get("RepoTags") or []):
        return []
    done = ident.docker("tag", reference, tag)
    if done.rc:
        raise ImageError(f"docker tag {reference} {tag}: {done.complaint()}")
    return [f"tagged {tag}"]
