"""A node made of a temporary root and programs in PATH that keep state like systemd, docker and the journal do."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils import rank

DIGEST = "sha256:" + "ab" * 32
SPEC: dict[str, Any] = {
    "schema": 1,
    "cluster": "lab",
    "rank": 1,
    "size": 3,
    "node": "spark-2",
    "address": "127.0.0.1",
    "head": {"address": "127.0.0.1", "master_port": 29501},
    "api": {"host": "127.0.0.1", "port": 1},
    "image": {"identity": DIGEST, "reference": f"127.0.0.1:5000/sparkmesh@{DIGEST}"},
    "model": {"path": "/models/tiny/main", "name": "tiny", "manifest": DIGEST},
    "vllm": {"options": {"dtype": "bfloat16"}},
    "environment": {},
    "fabric": {"mtu": 9000, "links": []},
    "guard": {"start_floor_bytes": 1, "start_period_s": 1, "steady_floor_bytes": 1, "steady_period_s": 1},
    "timeouts": {"start_s": 5, "stop_s": 60},
    "release": "r-aaaaaaaaaaaa",
    "group_hash": DIGEST,
}

PROGRAM = """#!{python} -IS
import json, pathlib, sys
state, root = pathlib.Path("{state}"), pathlib.Path("{root}")
name, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
with open(state / "calls", "a") as log:
    log.write(" ".join([name, *words]) + "\\n")
container = state / "container"
def unit(which, active=None):
    file = state / which
    if active: file.write_text(active)
    return file.read_text() if file.exists() else "inactive"
if name == "systemctl" and words[0] == "show":
    result = "exit-code" if unit(words[1]) == "failed" else "success"
    print("LoadState=loaded", "ActiveState=" + unit(words[1]), "Result=" + result, "InvocationID=abc", sep="\\n")
elif name == "systemctl" and words[0] == "start":
    if (state / ("refuse-" + words[1])).exists():
        unit(words[1], "failed"); sys.exit("Job for " + words[1] + " failed.")
    unit(words[1], "active")
    if words[1] == "sparkmesh-rank.service":
        text = (root / "etc/systemd/system" / words[1]).read_text()
        labels = [text.split(label + "=")[1].split()[0] for label in ("sparkmesh.release", "sparkmesh.config")]
        container.write_text("|".join(["true", *labels]))
        if (state / "dies").exists(): unit(words[1], "failed"); container.unlink()
elif name == "systemctl" and words[0] == "stop":
    unit(words[1], "inactive")
    if words[1] == "sparkmesh-rank.service": container.unlink(missing_ok=True)
elif name == "docker" and words[0] == "inspect":
    if not container.exists(): sys.exit("Error: No such object")
    print(container.read_text())
elif name == "journalctl":
    print((state / "journal").read_text() if (state / "journal").exists() else "", end="")
"""


class World:
    """The root, the programs' state, and a fresh Node for every module call."""

    def __init__(self, folder: Path) -> None:
        self.root, self.state = folder / "root", folder / "state"
        self.root.mkdir()
        self.state.mkdir()
        programs = folder / "bin"
        programs.mkdir()
        for name in ("systemctl", "docker", "journalctl"):
            (programs / name).write_text(PROGRAM.format(python=sys.executable, state=self.state, root=self.root))
            (programs / name).chmod(0o755)
        self.programs = programs

    def node(self, check: bool = False) -> rank.Node:
        return rank.Node(self.root, check)

    def spec(self, **changes: Any) -> dict[str, Any]:
        return copy.deepcopy(SPEC) | changes

    def install(
        self,
        check: bool = False,
        spec: dict[str, Any] | None = None,
        secrets: dict[str, str] | None = None,
        args: tuple[str, ...] = (),
        guard: str = "print('guard')\n",
    ) -> rank.Node:
        node = self.node(check)
        rank.install(
            node,
            spec or self.spec(),
            secrets=secrets or {},
            guard_source=guard,
            container_args=args,
            model_root="/var/lib/sparkmesh/models",
        )
        return node

    def file(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def calls(self, forget: bool = True) -> list[str]:
        """Commands that change something, since the last look."""
        log = self.state / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        if forget:
            log.unlink(missing_ok=True)
        return [line for line in lines if not line.startswith(("systemctl show", "docker inspect", "journalctl"))]

    def tree(self) -> dict[str, str]:
        return {str(path.relative_to(self.root)): path.read_text() for path in self.root.rglob("*") if path.is_file()}

    def history(self) -> list[tuple[str, str]]:
        lines = self.file("/var/lib/sparkmesh/releases.jsonl").read_text().splitlines()
        return [(entry["event"], entry["release"]) for entry in map(json.loads, lines)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    monkeypatch.setenv("PATH", str(made.programs))
    return made
