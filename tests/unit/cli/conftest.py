"""A small site on this machine: two hosts, both local."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[2]

for folder in (REPO / "collections", REPO / "scripts"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

HOSTS = """[sparks]
one
two
[all:vars]
ansible_connection=local
ansible_python_interpreter="{{ ansible_playbook_python }}"
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder laid out like the repository; its playbooks are those of tests/unit/cli/site."""
    root = tmp_path_factory.mktemp("site")
    (root / "ansible.cfg").write_text((REPO / "ansible.cfg").read_text())
    (root / "collections").symlink_to(REPO / "collections")
    (root / "inventories/lab").mkdir(parents=True)
    (root / "inventories/lab/hosts").write_text(HOSTS)
    shutil.copytree(HERE / "site", root / "playbooks")
    return root


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The caller's environment with this Python's commands first in PATH and nothing of Ansible set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "SPARKMESH_"))}
    return {**kept, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture(scope="session")
def events() -> list[dict[str, Any]]:
    """The events of recorded.yml as ansible-runner 2.4.3 and ansible-core 2.21.5 sent them."""
    return [json.loads(line) for line in (HERE / "events.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def wheels() -> ModuleType:
    """scripts/wheels as a module."""
    loader = SourceFileLoader("sparkmesh_wheels", str(REPO / "scripts/wheels"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    exec(compile(loader.get_data(loader.path), loader.path, "exec"), module.__dict__)  # no cache file beside the script
    return module
