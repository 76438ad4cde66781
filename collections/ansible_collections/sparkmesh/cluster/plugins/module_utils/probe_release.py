"""Probe sections ``image``, ``model`` and ``runtime``: what a deploy has left on the node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ansible_collections.sparkmesh.cluster.plugins.module_utils.system import Reader

SOURCE_LABEL = "io.sparkmesh.source"
MODEL_ROOT = "/var/lib/sparkmesh/models"
UNITS = ("sparkmesh-rank.service", "sparkmesh-guard.service", "sparkmesh-registry.service")
_PROPERTIES = "Id,LoadState,ActiveState,SubState,StateChangeTimestamp"


def read_image(reader: Reader) -> dict[str, Any]:
    """``{images: [{name, identity, source_id}]}``: every image that carries our source label."""
    argv = ["docker", "image", "ls", "--no-trunc", "--quiet", "--filter", f"label={SOURCE_LABEL}"]
    listed = reader.command("docker-images", argv, "image.images", absent_ok=reader.live)
    ids = sorted(set((listed or "").split()))
    if not ids:
        return {"images": []}
    text = reader.command("docker-inspect", ["docker", "image", "inspect", *ids], "image.images")
    try:
        inspected = json.loads(text or "[]")
    except ValueError:
        reader.miss("image.images")
        inspected = []
    identity_of = _identity_function()
    if identity_of is None:
        reader.miss("image.identity")
    images = [
        {
            "name": next(iter([*(item.get("RepoTags") or []), *(item.get("RepoDigests") or [])]), None),
            "identity": _identity(reader, identity_of, item) if identity_of else None,
            "source_id": ((item.get("Config") or {}).get("Labels") or {}).get(SOURCE_LABEL),
        }
        for item in inspected
    ]
    return {"images": sorted(images, key=lambda image: str(image["name"]))}


def read_model(reader: Reader) -> dict[str, Any]:
    """``{stores: [{name, revision, manifest, files, bytes}]}``; ``manifest`` is the digest the manifest names."""
    stores = []
    for name in reader.names(MODEL_ROOT, "model.stores", absent_ok=True):
        for revision in reader.names(f"{MODEL_ROOT}/{name}", absent_ok=True):
            path = f"{MODEL_ROOT}/{name}/{revision}/.sparkmesh/manifest.json"
            if not reader.exists(path):
                continue
            store = _store(reader, path, f"model.stores.{name}/{revision}")
            if store is not None:
                stores.append(store)
    return {"stores": stores}


def read_runtime(reader: Reader) -> dict[str, Any]:
    """``{units: {unit: {active, sub, since}}, release, group_hash}``; a unit that is not installed is not listed."""
    argv = ["systemctl", "show", f"--property={_PROPERTIES}", *UNITS]
    text = reader.command("systemctl-show", argv, "runtime.units") or ""
    units = {}
    for block in text.strip().split("\n\n"):
        field = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if field.get("LoadState", "not-found") != "not-found":
            units[field["Id"]] = {
                "active": field.get("ActiveState"),
                "sub": field.get("SubState"),
                "since": field.get("StateChangeTimestamp") or None,
            }
    spec = _json_file(reader, "/etc/sparkmesh/rank.json", "runtime.release") or {}
    return {"units": units, "release": spec.get("release"), "group_hash": spec.get("group_hash")}


def _identity(reader: Reader, identity_of: Callable[[dict[str, Any]], str], item: dict[str, Any]) -> str | None:
    try:
        return identity_of(item)
    except Exception:  # a half-loaded image has no identity; its error type belongs to the module found late
        reader.miss("image.identity")
        return None


def _identity_function() -> Callable[[dict[str, Any]], str] | None:
    # Found late on purpose: a node can be observed by a collection without the image modules.
    try:
        from ansible_collections.sparkmesh.cluster.plugins.module_utils.image_identity import identity_of_inspect  # noqa: PLC0415
    except ImportError:
        return None
    found: Callable[[dict[str, Any]], str] = identity_of_inspect
    return found


def _store(reader: Reader, path: str, key: str) -> dict[str, Any] | None:
    manifest = _json_file(reader, path, key)
    if manifest is None:
        return None
    try:
        sizes = [entry["size"] for entry in manifest["files"].values()]
        return {
            "name": manifest["name"],
            "revision": manifest["revision"],
            "manifest": manifest["manifest"],
            "files": len(sizes),
            "bytes": sum(sizes),
        }
    except (KeyError, TypeError, AttributeError):
        reader.miss(key)
        return None


def _json_file(reader: Reader, path: str, key: str) -> dict[str, Any] | None:
    text = reader.text(path, key, absent_ok=True)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        reader.miss(key)
        return None
    return value
