"""What the lab asks of the machine and of a Docker engine, and the sentences when it is not there."""

from pathlib import Path

import pytest

from lab import config, engine, host
from lab.__main__ import main
from lab.shell import LabError, run


def test_missing_capabilities_are_named() -> None:
    assert host.missing_capabilities("Name:\tx\nCapEff:\t000001fffeffffff\n") == []
    assert host.missing_capabilities("CapEff:\t00000000a80425fb\n") == ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]


def test_ordinary_user_is_told_to_use_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match=r"uid 1000, wanted 0\n  fix: run it with sudo"):
        host.require_privileges()


def test_small_disk_names_folder_seen_and_wanted(tmp_path: Path) -> None:
    assert host.require_disk(tmp_path / "new", 0) > 0
    with pytest.raises(LabError, match=rf"{tmp_path} has .* GiB free, wanted 1e\+06 GiB"):
        host.require_disk(tmp_path, 1e6)


FIT = {"CgroupVersion": "2", "Driver": "overlay2", "SecurityOptions": ["name=cgroupns"]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"CgroupVersion": "1"}, "cgroup version 1, wanted 2"),
        ({"Driver": "vfs"}, "storage driver is vfs, wanted overlay2"),
        ({"SecurityOptions": ["name=rootless"]}, "rootless"),
    ],
)
def test_an_engine_that_cannot_carry_the_lab_is_refused(change: dict[str, object], reason: str) -> None:
    seen = engine.unfit({**FIT, **change})
    assert (reason in seen) and bool(seen) == bool(reason)


def test_failed_program_is_quoted_with_its_last_words() -> None:
    with pytest.raises(LabError, match=r"`sh -c echo why >&2; exit 3` ended with status 3, wanted 0:\n    why"):
        run(["sh", "-c", "echo why >&2; exit 3"])


def test_status_without_a_lab_and_cable_without_a_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARKMESH_LAB_DIR", str(tmp_path))
    assert main(["status", "--json"]) == 0
    assert '"up": false' in capsys.readouterr().out
    assert main(["cable", "cut", "spark-1:p0"]) == 1
    assert "no lab is up" in capsys.readouterr().err


def test_nodes_have_the_addresses_of_the_contract() -> None:
    assert [(n.name, n.address) for n in config.nodes("ring")] == [
        (f"spark-{i}", f"172.31.77.1{i}") for i in range(1, 5)
    ]
