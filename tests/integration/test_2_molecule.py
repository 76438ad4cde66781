"""Every role's molecule scenario on the nodes that site.yml has converged.

Each one runs prepare, check, converge, idempotence and verify.
"""

from pathlib import Path

import pytest

from .conftest import REPO, Lab

pytestmark = pytest.mark.lab

# The reboot takes the service with it, so it comes last; the others leave it running.
ROLES = sorted((path.name for path in (REPO / "roles").iterdir()), key=lambda role: (role == "reboot", role))


def test_every_role_has_a_scenario() -> None:
    assert {path.parent.name for path in (REPO / "molecule").glob("*/converge.yml")} == set(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_scenario(lab: Lab, role: str, tmp_path: Path) -> None:
    # All scenarios share the lab, and with it molecule's note that the nodes are prepared: each wants its own prepare.
    reset = lab.run("molecule", "reset", "--scenario-name", "default", ANSIBLE_CONFIG="")
    assert reset.rc == 0, reset.tail()
    done = lab.run(
        "molecule", "test", "--scenario-name", role, "--destroy=never", "--report",
        SPARKMESH_REPORT_DIR=str(tmp_path), ANSIBLE_CONFIG="", NO_COLOR="1", seconds=900,
    )  # fmt: skip
    assert done.rc == 0, done.tail(120)
