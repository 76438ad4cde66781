"""A docker command over a folder: enough of image, build, push, pull, tag and info to drive the module functions.

State is `$FAKE_DOCKER/images.json` {reference: inspect}; a push writes a real manifest to `$FAKE_DOCKER/registry/`, a
pull reads what lies there. Every call is appended to `$FAKE_DOCKER/calls`. `$FAKE_DOCKER/fail-<verb>` holds the number
of times that verb shall still fail; `$FAKE_DOCKER/down` means there is no engine.
"""

import hashlib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

HOME = Path(os.environ["FAKE_DOCKER"])
IMAGES = HOME / "images.json"


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def failing(verb: str) -> bool:
    mark = HOME / f"fail-{verb}"
    left = int(mark.read_text()) if mark.exists() else 0
    if left:
        mark.write_text(str(left - 1))
    return left > 0


def build(words: list[str], images: dict[str, dict[str, Any]]) -> int:
    options = list(itertools.pairwise(words))
    folder = Path(words[-1])
    steps = (folder / "Dockerfile").read_text().splitlines()
    for number, step in enumerate(steps, 1):
        print(f"Step {number}/{len(steps)} : {step}", flush=True)
        if "false" in step:
            print("\n".join(f"noise {each}" for each in range(60)), flush=True)
            print(f"The command '{step}' returned a non-zero code: 1", file=sys.stderr)
            return 1
    layers = [digest_of(path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()]
    inspect = {
        "Os": "linux",
        "Architecture": "arm64",
        "RepoDigests": [],
        "RootFS": {"Type": "layers", "Layers": layers},
        "Config": {
            "Labels": dict(value.split("=", 1) for word, value in options if word == "--label"),
            "Env": ["BUILDKIT=" + os.environ.get("DOCKER_BUILDKIT", "unset")],
        },
    }
    inspect["Id"] = digest_of(json.dumps(inspect, sort_keys=True).encode())
    images[next(value for word, value in options if word == "--tag")] = inspect
    return 0


def push(reference: str, images: dict[str, dict[str, Any]]) -> int:
    repo, tag = reference.rsplit(":", 1)
    manifest = json.dumps({"schemaVersion": 2, "config": {"digest": images[reference]["Id"]}}).encode()
    digest = digest_of(manifest)
    (HOME / "registry").mkdir(exist_ok=True)
    (HOME / "registry" / tag).write_bytes(manifest)
    (HOME / "registry" / digest).write_text(json.dumps(images[reference]))
    images[reference]["RepoDigests"] = [f"{repo}@{digest}"]
    print(f"0123456789ab: Preparing\n0123456789ab: Pushed\n{tag}: digest: {digest} size: {len(manifest)}")
    return 0


def pull(reference: str, images: dict[str, dict[str, Any]]) -> int:
    repo, digest = reference.split("@")
    stored = HOME / "registry" / digest
    if failing("pull") or not stored.exists():
        print(f"Error response from daemon: manifest for {reference} not found", file=sys.stderr)
        return 1
    print("0123456789ab: Pulling fs layer\n0123456789ab: Pull complete")
    images[reference] = {**json.loads(stored.read_text()), "RepoDigests": [f"{repo}@{digest}"], "RepoTags": []}
    return 0


def main(words: list[str]) -> int:
    with (HOME / "calls").open("a") as calls:
        calls.write(" ".join(words) + "\n")
    if (HOME / "down").exists():
        print("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", file=sys.stderr)
        return 1
    images: dict[str, dict[str, Any]] = json.loads(IMAGES.read_text()) if IMAGES.exists() else {}
    rc = 0
    if words[:2] == ["image", "inspect"]:
        found = [image for name, image in images.items() if words[2] in (name, image["Id"], *image["RepoDigests"])]
        print(json.dumps(found[:1]))
        if not found:
            print(f"Error response from daemon: No such image: {words[2]}", file=sys.stderr)
            return 1
    elif words[:2] == ["image", "ls"]:
        print("\n".join(image["Id"] for name, image in images.items() if name.rsplit(":", 1)[0] == words[-1]))
    elif words[0] == "info":
        print(HOME)
    elif words[0] == "build":
        rc = build(words, images)
    elif words[0] == "push":
        rc = push(words[1], images)
    elif words[0] == "pull":
        rc = pull(words[1], images)
    elif words[0] == "tag":
        images[words[2]] = image = images[words[1]]
        for same in [each for each in images.values() if each["Id"] == image["Id"]]:
            same["RepoTags"] = [*same.get("RepoTags", []), words[2]]
    else:
        rc = 125
    IMAGES.write_text(json.dumps(images))
    return rc


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
