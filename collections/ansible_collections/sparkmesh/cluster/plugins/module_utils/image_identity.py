"""What an image is, whatever engine stores it, and what the local engine and the local registry hold.

Engines disagree about the image id (config digest or manifest digest) and lose repository digests on load, so an
image's identity is computed from what it does: platform, layer contents, and the configuration a container gets.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import CommandFailed, Result, run

SOURCE_LABEL = "io.sparkmesh.source"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9]+(?:[._/-][a-z0-9]+)*")
_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)


class ImageError(Exception):
    """An image, the engine or the registry is not as needed; the text names it and the fix.

    `step` is the failing build step and `tail` the last lines of the build log, both empty for other errors.
    """

    def __init__(self, text: str, step: str = "", tail: list[str] | None = None) -> None:
        super().__init__(text)
        self.step = step
        self.tail = tail or []


class NoEngine(ImageError):
    """The docker command or its engine is not there, so nothing about images can be observed."""


def identity_of_inspect(inspect: Mapping[str, Any]) -> str:
    """Identity of one `docker image inspect` entry: "sha256:" + hash of platform, layers and configuration.

    The order of labels, environment variables and exposed ports means nothing and does not count; that of layers and
    of command words does. Absent and empty are the same to a container, and so are here; no working folder is "/".
    Raises ImageError when the entry has no platform or no layers.
    """
    layers = (inspect.get("RootFS") or {}).get("Layers")
    platform = (inspect.get("Os"), inspect.get("Architecture"))
    if not layers or not all(platform):
        raise ImageError(
            f"image {inspect.get('Id', '?')}: seen platform {platform} and {len(layers or [])} layers, "
            "wanted both in its inspect output; build or pull it again"
        )
    config = inspect.get("Config") or {}
    plain = {
        "platform": "/".join(str(part) for part in platform),
        "layers": list(layers),
        "config": {
            "Env": sorted(config.get("Env") or []),
            "Entrypoint": list(config.get("Entrypoint") or []),
            "Cmd": list(config.get("Cmd") or []),
            "Labels": dict(config.get("Labels") or {}),
            "WorkingDir": config.get("WorkingDir") or "/",
            "User": config.get("User") or "",
            "ExposedPorts": sorted(config.get("ExposedPorts") or {}),
        },
    }
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def short_source(source_id: str) -> str:
    """The image tag of a source id: its first 12 characters, without a "sha256:" before them."""
    short = source_id.rpartition(":")[2][:12]
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", short):
        raise ImageError(f"source_id {source_id!r} gives no image tag; wanted sha256:<hex> or plain hex")
    return short


def repository(registry: str, name: str) -> str:
    """`<registry>/<name>`, or the name alone without a registry."""
    if not _NAME.fullmatch(name):
        raise ImageError(f"image name {name!r}: wanted lower-case letters, digits and . _ - / between them")
    return f"{registry}/{name}" if registry else name


def valid_digest(digest: str) -> str:
    """Return `digest` if it is a sha256 digest, else raise ImageError."""
    if not _DIGEST.fullmatch(digest):
        raise ImageError(f"digest {digest!r}: wanted sha256: and 64 hex digits, as `pushed` returns it")
    return digest


def docker(*words: str, timeout: float = 120.0) -> Result:
    """Run `docker ...`; raises NoEngine when it or its engine is not there. Another failure is left to the caller."""
    try:
        done = run(("docker", *words), check=False, timeout=timeout)
    except CommandFailed as error:
        if error.missing:
            raise NoEngine("docker is not installed on this node; the host role installs it") from error
        raise ImageError(str(error)) from error
    if done.rc and "Cannot connect to the Docker daemon" in done.err + done.out:
        raise NoEngine(f"the docker engine does not answer: {done.complaint()}; see systemctl status docker")
    return done


def inspect_image(reference: str) -> dict[str, Any] | None:
    """The inspect entry of a local image, None when there is none; raises ImageError on any other failure."""
    done = docker("image", "inspect", reference)
    if done.rc:
        if "no such image" in (done.err + done.out).lower():
            return None
        raise ImageError(f"docker image inspect {reference}: {done.complaint()}")
    try:
        entries = json.loads(done.out)
        return dict(entries[0])
    except (ValueError, LookupError, TypeError) as error:
        raise ImageError(f"docker image inspect {reference}: not its usual JSON ({error})") from error


def labels(inspect: Mapping[str, Any]) -> dict[str, str]:
    """The labels of an inspect entry."""
    return dict((inspect.get("Config") or {}).get("Labels") or {})


def repo_digest(inspect: Mapping[str, Any], repo: str) -> str:
    """The manifest digest under which the engine knows the image in `repo`, "" if it does not."""
    found = [each.partition("@")[2] for each in inspect.get("RepoDigests") or [] if each.partition("@")[0] == repo]
    return found[0] if found else ""


def describe(inspect: Mapping[str, Any] | None, repo: str, digest: str = "") -> dict[str, Any]:
    """{present, identity, source_id, digest, reference}; every text is "" where it is not known."""
    if inspect is None:
        return {"present": False, "identity": "", "source_id": "", "digest": "", "reference": ""}
    digest = digest or repo_digest(inspect, repo)
    return {
        "present": True,
        "identity": identity_of_inspect(inspect),
        "source_id": labels(inspect).get(SOURCE_LABEL, ""),
        "digest": digest,
        "reference": f"{repo}@{digest}" if digest else "",
    }


def find(repo: str, source_id: str = "", digest: str = "") -> dict[str, Any] | None:
    """The local image of `repo`: by digest, else by source id (tag and label must agree), else the newest one."""
    if digest:
        return inspect_image(f"{repo}@{valid_digest(digest)}")
    if source_id:
        inspect = inspect_image(f"{repo}:{short_source(source_id)}")
        return inspect if inspect and labels(inspect).get(SOURCE_LABEL) == source_id else None
    listed = docker("image", "ls", "--no-trunc", "--format", "{{.ID}}", repo)
    if listed.rc:
        raise ImageError(f"docker image ls {repo}: {listed.complaint()}")
    return inspect_image(listed.out.split()[0]) if listed.out.split() else None


def require_space(folders: list[str], wanted: int) -> None:
    """Raise ImageError unless each folder's file system has `wanted` bytes free; the engine's own folder counts too."""
    info = docker("info", "--format", "{{.DockerRootDir}}")
    for folder in [*folders, info.out.strip() if not info.rc else ""]:
        try:
            free = shutil.disk_usage(folder).free if folder else wanted
        except FileNotFoundError:
            continue
        if free < wanted:
            raise ImageError(
                f"{folder}: {free} bytes free, wanted {wanted} (min_free_bytes); remove unused images "
                "(docker image prune) or enlarge the disk"
            )


def registry_manifest(registry: str, name: str, tag: str, timeout: float = 30.0) -> tuple[str, str] | None:
    """(manifest digest, config digest or "") of `<name>:<tag>` in the registry, None when it has no such tag.

    A loopback registry speaks plain HTTP, as docker assumes too; any other HTTPS. The digest is computed from the
    manifest itself. An index (several platforms) has no config digest.
    """
    scheme = "http" if re.match(r"(127\.|localhost\b|\[::1\])", registry) else "https"
    url = f"{scheme}://{registry}/v2/{name}/manifests/{tag}"
    request = urllib.request.Request(url, headers={"Accept": _MANIFESTS})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            body = answer.read()
        config = (json.loads(body).get("config") or {}).get("digest", "")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise ImageError(f"registry {url}: answered {error.code}, wanted 200 or 404") from error
    except (OSError, ValueError, AttributeError) as error:
        raise ImageError(f"registry {url}: {error}; see whether the registry runs and listens there") from error
    return "sha256:" + hashlib.sha256(body).hexdigest(), str(config)
