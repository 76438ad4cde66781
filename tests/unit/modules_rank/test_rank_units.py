"""The unit texts, also judged by systemd itself where it is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils import units

ANALYZE = shutil.which("systemd-analyze")


def lines(text: str, key: str) -> list[str]:
    return [line.split("=", 1)[1] for line in text.splitlines() if line.startswith(f"{key}=")]


def test_rank_unit(world: Any) -> None:
    text = units.rank_unit(world.spec(), ["--gpus=all", "--device-cgroup-rule=c 226:* rw"], "/srv/models")
    (start,) = lines(text, "ExecStart")
    assert start.startswith("/usr/bin/docker run --rm --name sparkmesh-rank --network host --ipc host ")
    assert start.endswith(
        f'--gpus=all "--device-cgroup-rule=c 226:* rw" {world.spec()["image"]["reference"]} '
        "sparkmesh-rank /etc/sparkmesh/rank.json"
    )
    assert " --env-file /etc/sparkmesh/rank.env " in start and " -v /srv/models:/models:ro " in start
    assert " -v /etc/sparkmesh/rank.json:/etc/sparkmesh/rank.json:ro " in start
    assert lines(text, "BindsTo") == ["sparkmesh-guard.service"] and lines(text, "Requires") == ["docker.service"]
    assert "sparkmesh-guard.service" in lines(text, "After")[0] and "docker.service" in lines(text, "After")[0]
    assert lines(text, "ExecStop") == ["-/usr/bin/docker stop -t 60 sparkmesh-rank"]
    assert lines(text, "TimeoutStopSec") == ["90"] and lines(text, "Restart") == ["no"]
    assert "[Install]" not in text.splitlines()


def test_guard_unit() -> None:
    text = units.guard_unit()
    assert lines(text, "Type") == ["notify"] and lines(text, "Before") == ["sparkmesh-rank.service"]
    assert lines(text, "OOMScoreAdjust") == ["-1000"]


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ('a"b', '"a\\"b"'),
        ("50%", "50%%"),
        ("$HOME", "$$HOME"),
        ("a\\b", "a\\\\b"),
        ("a;b", '"a;b"'),
    ],
)
def test_systemd_takes_an_argument_literally(raw: str, quoted: str) -> None:
    assert units.quote(raw) == quoted


def test_a_line_break_is_refused() -> None:
    with pytest.raises(ValueError, match="line break"):
        units.quote("a\nExecStartPre=/bin/true")


def test_the_digest_covers_arguments_and_root(world: Any) -> None:
    spec = world.spec()
    seen = {
        units.config_digest(spec, [], "/m"),
        units.config_digest(spec, ["--gpus=all"], "/m"),
        units.config_digest(spec, [], "/n"),
        units.config_digest(spec | {"node": "other"}, [], "/m"),
    }
    assert len(seen) == 4


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed here")
def test_systemd_accepts_both_units(world: Any, tmp_path: Path) -> None:
    folder = tmp_path / "units"
    folder.mkdir()
    # What stands in for programs and units that this machine may lack; every directive stays ours.
    text = units.rank_unit(world.spec(), ["--device-cgroup-rule=c 226:* rw"], "/srv/models")
    (folder / units.RANK_UNIT).write_text(text.replace("/usr/bin/docker", "/bin/true"))
    (folder / units.GUARD_UNIT).write_text(units.guard_unit())
    (folder / "docker.service").write_text("[Service]\nExecStart=/bin/true\n")
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(folder / units.RANK_UNIT), str(folder / units.GUARD_UNIT)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"SYSTEMD_UNIT_PATH": f"{folder}:", "PATH": "/usr/bin:/bin"},
    )
    ours = [line for line in done.stderr.splitlines() if "sparkmesh" in line]
    assert not ours, done.stderr
