"""The serving image's base: a small Debian bookworm tree with Python 3.11, kept as an OCI image layout.

Python 3.11 because that is what the CPU build of torch is published for where the lab runs. No compiler: the lab
serves with compilation switched off.
"""

import gzip
import hashlib
import json
import platform
import tempfile
from pathlib import Path
from typing import IO, Any

from lab import config, debootstrap, sources

PACKAGES = ("ca-certificates", "libgomp1", "libnuma1", "python3", "python3-pip", "python3-venv")
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
_CREATED = "2025-01-01T00:00:00Z"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def ensure() -> tuple[Path, str]:
    """Return the folder of the OCI layout and how it came to be: there already, or built."""
    suite, source = sources.for_base()
    architecture = _architecture()
    folder = config.cache_dir() / f"base-{debootstrap.key([suite, list(PACKAGES), architecture])}"
    if (folder / "index.json").exists():
        return folder, "present"
    config.cache_dir().mkdir(parents=True, exist_ok=True)
    log = config.state_dir() / "log" / "base-image.log"
    with tempfile.TemporaryDirectory(prefix="building-", dir=config.cache_dir(), ignore_cleanup_errors=True) as home:
        part = Path(home) / "layout"
        (part / "blobs" / "sha256").mkdir(parents=True)
        tree = debootstrap.start(suite, source, PACKAGES, log)
        assert tree.stdout is not None
        with tree.stdout as stream:
            diff_id, layer = _pack(stream, part / "blobs" / "sha256")
        debootstrap.finish(tree, log)
        _describe(part, diff_id, layer, architecture)
        part.rename(folder)
    debootstrap.prune("base-*")
    return folder, f"built ({layer['size'] / 2**20:.0f} MiB)"


def _architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _pack(stream: IO[bytes], blobs: Path) -> tuple[str, dict[str, Any]]:
    """Compress a tar stream into ``blobs``; return its diff id and the layer's descriptor."""
    plain = hashlib.sha256()
    target = blobs / "layer"
    with target.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as packed:
        while chunk := stream.read(1 << 20):
            plain.update(chunk)
            packed.write(chunk)
    with target.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    size = target.stat().st_size
    target.rename(blobs / digest)
    return f"sha256:{plain.hexdigest()}", {"mediaType": _LAYER_TYPE, "digest": f"sha256:{digest}", "size": size}


def _blob(folder: Path, content: object, media_type: str) -> dict[str, Any]:
    data = json.dumps(content, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    (folder / "blobs" / "sha256" / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _describe(folder: Path, diff_id: str, layer: dict[str, Any], architecture: str) -> None:
    image = {
        "created": _CREATED,
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": [f"PATH={_PATH}"], "Cmd": ["/bin/bash"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": _CREATED, "created_by": "sparkmesh lab base image"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": _blob(folder, image, _CONFIG_TYPE),
        "layers": [layer],
    }
    entry = _blob(folder, manifest, MANIFEST_TYPE)
    entry["annotations"] = {"org.opencontainers.image.ref.name": config.BASE_TAG}
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
