"""A node made of a temporary root and programs in PATH that keep state like systemd, docker and the journal do."""

from __future__ import annotations

import copy
import json
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

# sh and not Python: the tests start hundreds of these. PATH holds nothing else, so cat and rm are named in full.
PROGRAM = """#!/bin/sh
state='{state}' root='{root}' name=${{0##*/}}
echo "$name $*" >>"$state/calls"
active() {{ active=inactive; [ ! -f "$state/$1" ] || read -r active <"$state/$1" || :; }}
become() {{ printf %s "$2" >"$state/$1"; }}
case "$name $1" in
"systemctl show")
    active "$2"; result=success; [ "$active" != failed ] || result=exit-code
    printf '%s\\n' LoadState=loaded "ActiveState=$active" "Result=$result" InvocationID=abc ;;
"systemctl start")
    if [ -e "$state/refuse-$2" ]; then become "$2" failed; echo "Job for $2 failed." >&2; exit 1; fi
    become "$2" active
    [ "$2" = sparkmesh-rank.service ] || exit 0
    while read -r line; do
        case "$line" in *sparkmesh.release=*sparkmesh.config=*) break ;; esac
    done <"$root/etc/systemd/system/$2" || exit 1
    release=${{line#*sparkmesh.release=}} config=${{line#*sparkmesh.config=}}
    printf %s "true|${{release%% *}}|${{config%% *}}" >"$state/container"
    if [ -e "$state/dies" ]; then become "$2" failed; /bin/rm "$state/container"; fi ;;
"systemctl stop")
    become "$2" inactive
    [ "$2" != sparkmesh-rank.service ] || /bin/rm -f "$state/container" ;;
"docker inspect")
    [ -e "$state/container" ] || {{ echo "Error: No such object" >&2; exit 1; }}
    /bin/cat "$state/container" ;;
"journalctl "*)
    [ ! -e "$state/journal" ] || /bin/cat "$state/journal" ;;
esac
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
            (programs / name).write_text(PROGRAM.format(state=self.state, root=self.root))
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
