"""What an image's identity depends on, and the logic around docker against a fake docker and a small registry."""

from __future__ import annotations

import copy
import http.server
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils import image_identity as ident
from ansible_collections.sparkmesh.cluster.plugins.module_utils import image_transfer as transfer
from ansible_collections.sparkmesh.cluster.plugins.module_utils.image_identity import ImageError
from ansible_collections.sparkmesh.cluster.plugins.modules import image_identity as module

SOURCE = "sha256:" + "ab" * 32
FILES = {"Dockerfile": "FROM base\nCOPY a/run.sh /\nRUN true", "a/run.sh": "#!/bin/sh\n"}

INSPECT: dict[str, Any] = {
    "Id": "sha256:" + "1" * 64,
    "RepoTags": ["x:1"],
    "RepoDigests": [],
    "Created": "2026-12-01T00:00:00Z",
    "Os": "linux",
    "Architecture": "arm64",
    "Variant": "v8",
    "Size": 12,
    "RootFS": {"Type": "layers", "Layers": ["sha256:" + "a" * 64, "sha256:" + "b" * 64]},
    "Config": {
        "Env": ["PATH=/bin", "A=1"],
        "Entrypoint": ["python3"],
        "Cmd": None,
        "Labels": {"a": "1", "b": "2"},
        "WorkingDir": "",
        "User": "",
        "ExposedPorts": {"8000/tcp": {}, "80/tcp": {}},
        "Hostname": "abc",
    },
}


def changed(**changes: Any) -> dict[str, Any]:
    """INSPECT with top-level keys, or with config keys given as config__Key, replaced."""
    doc = copy.deepcopy(INSPECT)
    for key, value in changes.items():
        if key.startswith("config__"):
            doc["Config"][key.removeprefix("config__")] = value
        else:
            doc[key] = value
    return doc


@pytest.mark.parametrize(
    "other",
    [
        changed(Id="sha256:" + "2" * 64, RepoTags=[], RepoDigests=["r/x@sha256:" + "3" * 64], Created="later", Size=1),
        changed(Variant=""),
        changed(config__Env=["A=1", "PATH=/bin"]),
        changed(config__Labels={"b": "2", "a": "1"}),
        changed(config__ExposedPorts={"80/tcp": {}, "8000/tcp": {}}),
        changed(config__Cmd=[]),
        changed(config__WorkingDir="/"),
        changed(config__Hostname="other"),
    ],
)
def test_what_means_nothing_to_a_container_does_not_change_the_identity(other: dict[str, Any]) -> None:
    assert ident.identity_of_inspect(other) == ident.identity_of_inspect(INSPECT)


@pytest.mark.parametrize(
    "other",
    [
        changed(RootFS={"Layers": ["sha256:" + "a" * 64, "sha256:" + "c" * 64]}),
        changed(RootFS={"Layers": list(reversed(INSPECT["RootFS"]["Layers"]))}),
        changed(RootFS={"Layers": INSPECT["RootFS"]["Layers"][:1]}),
        changed(Architecture="amd64"),
        changed(Os="windows"),
        changed(config__Env=["PATH=/bin", "A=2"]),
        changed(config__Entrypoint=None),
        changed(config__Cmd=["python3"]),
        changed(config__Labels={"a": "1"}),
        changed(config__WorkingDir="/srv"),
        changed(config__User="1000"),
        changed(config__ExposedPorts=None),
    ],
)
def test_what_a_container_gets_changes_the_identity(other: dict[str, Any]) -> None:
    assert ident.identity_of_inspect(other) != ident.identity_of_inspect(INSPECT)


def test_command_order_counts() -> None:
    assert ident.identity_of_inspect(changed(config__Cmd=["a", "b"])) != ident.identity_of_inspect(
        changed(config__Cmd=["b", "a"])
    )


@pytest.mark.parametrize("broken", [changed(RootFS={}), changed(RootFS=None), changed(Os=""), {}])
def test_an_image_without_layers_or_platform_has_no_identity(broken: dict[str, Any]) -> None:
    with pytest.raises(ImageError, match="wanted both"):
        ident.identity_of_inspect(broken)


class Engine:
    """The fake docker's folder, a registry over what it pushed, and the module's parameters."""

    def __init__(self, home: Path, registry: str) -> None:
        self.home, self.registry = home, registry
        self.said: list[tuple[int, int, str]] = []

    def run(self, state: str, check: bool = False, **options: Any) -> dict[str, Any]:
        params = {key: spec.get("default") for key, spec in module.SPEC.items()}
        params |= {
            "name": "sparkmesh",
            "registry": self.registry,
            "state": state,
            "files": FILES,
            "min_free_bytes": 1,
            "build_root": str(self.home / "build"),
            "log": str(self.home / "log" / "image-build.log"),
            "delay_s": 0.01,
            **options,
        }
        return module.work(params, check, lambda *said: self.said.append(said))

    def calls(self, verb: str) -> list[str]:
        return [line for line in (self.home / "calls").read_text().splitlines() if line.startswith(verb)]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    home = tmp_path / "docker"
    (tmp_path / "bin").mkdir()
    home.mkdir()
    command = tmp_path / "bin" / "docker"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -I {Path(__file__).with_name("fake_docker.py")} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER", str(home))

    class Registry(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stored = home / "registry" / self.path.rsplit("/", 1)[1]
            good = self.path.startswith("/v2/sparkmesh/manifests/") and stored.exists()
            body = stored.read_bytes() if good else b"{}"
            self.send_response(200 if good else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Engine(home, f"127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def test_build_push_pull_and_again(engine: Engine) -> None:
    assert engine.run("probed")["present"] is False
    built = engine.run("built", source_id=SOURCE, build_args={"B": 2, "A": "x y"}, network="host")
    assert built["changed"] and built["source_id"] == SOURCE and built["digest"] == ""
    (call,) = engine.calls("build")
    assert "--network host" in call and "--build-arg A=x y --build-arg B=2" in call
    assert (engine.home / "build" / "sparkmesh" / "a" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (0, 3, "step 1: FROM base") in engine.said and (2, 3, "step 3: RUN true") in engine.said
    assert "Step 3/3 : RUN true" in (engine.home / "log" / "image-build.log").read_text()
    again = engine.run("built", source_id=SOURCE)
    assert not again["changed"] and again["identity"] == built["identity"] and len(engine.calls("build")) == 1

    pushed = engine.run("pushed", source_id=SOURCE)
    assert pushed["changed"] and pushed["reference"] == f"{engine.registry}/sparkmesh@{pushed['digest']}"
    repeated = engine.run("pushed", source_id=SOURCE)
    assert not repeated["changed"] and repeated["digest"] == pushed["digest"] and len(engine.calls("push")) == 1

    (engine.home / "images.json").unlink()
    wanted = {"digest": pushed["digest"], "identity": built["identity"]}
    assert engine.run("pulled", check=True, **wanted)["changed"] and not engine.calls("pull")
    (engine.home / "fail-pull").write_text("2")
    pulled = engine.run("pulled", **wanted)
    assert pulled["changed"] and pulled["identity"] == built["identity"] and len(engine.calls("pull")) == 3
    assert not engine.run("pulled", **wanted)["changed"] and len(engine.calls("pull")) == 3
    probed = engine.run("probed", source_id=SOURCE)
    assert probed["present"] and probed["reference"] == pushed["reference"], "it is tagged as on the build node"


def test_classic_builder_unless_told_otherwise(engine: Engine) -> None:
    engine.run("built", source_id=SOURCE)
    engine.run("built", source_id="c" * 40, builder="buildkit")
    images = json.loads((engine.home / "images.json").read_text())
    assert [image["Config"]["Env"] for image in images.values()] == [["BUILDKIT=0"], ["BUILDKIT=1"]]


def test_a_failed_build_names_its_step_and_gives_the_last_40_lines(engine: Engine) -> None:
    files = {"Dockerfile": "FROM base\nRUN true\nRUN false\nRUN never"}
    with pytest.raises(ImageError, match=r"ended with status 1 at Step 3/4 : RUN false") as caught:
        engine.run("built", source_id=SOURCE, files=files)
    assert caught.value.step == "Step 3/4 : RUN false" and len(caught.value.tail) == 40
    assert "returned a non-zero code: 1" in caught.value.tail[-1]
    assert not engine.run("probed", source_id=SOURCE)["present"]


def test_check_mode_shows_what_differs_from_the_context_on_disk(engine: Engine) -> None:
    engine.run("built", source_id=SOURCE)
    files = {**FILES, "new.txt": "n"}
    del files["a/run.sh"]
    planned = engine.run("built", check=True, source_id="d" * 40, files=files)
    assert [each["after_header"] for each in planned["diff"]] == ["a/run.sh", "new.txt"]
    assert planned["actions"] == [f"would build {engine.registry}/sparkmesh from 2 files, changed: a/run.sh, new.txt"]
    engine.run("built", source_id="d" * 40, files=files)
    assert transfer.context_on_disk(engine.home / "build" / "sparkmesh") == files
    assert not (engine.home / "build" / "sparkmesh" / "a").exists()


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "./x", "a//x"])
def test_a_build_file_outside_the_context_is_refused(engine: Engine, path: str) -> None:
    with pytest.raises(ImageError, match="inside the context"):
        engine.run("built", source_id=SOURCE, files={**FILES, path: "x"})


def test_an_image_with_another_identity_is_refused_and_not_tagged(engine: Engine) -> None:
    engine.run("built", source_id=SOURCE)
    digest = engine.run("pushed", source_id=SOURCE)["digest"]
    (engine.home / "images.json").unlink()
    with pytest.raises(ImageError, match=f"@{digest}: seen identity sha256:[0-9a-f]+, wanted sha256:0+"):
        engine.run("pulled", digest=digest, identity="sha256:" + "0" * 64)
    assert len(engine.calls("pull")) == 1 and not engine.calls("tag")


def test_a_pull_that_never_comes_ends_after_its_tries(engine: Engine) -> None:
    with pytest.raises(ImageError, match=r"after 3 tries: .*not found"):
        engine.run("pulled", digest="sha256:" + "0" * 64, identity="sha256:" + "0" * 64, retries=2)


def test_the_same_tag_with_another_label_is_built_again(engine: Engine) -> None:
    engine.run("built", source_id=SOURCE)
    other = SOURCE[:-1] + "c"
    assert ident.short_source(other) == ident.short_source(SOURCE)
    assert engine.run("built", source_id=other)["source_id"] == other


def test_a_tag_in_the_registry_that_is_another_image_is_pushed_over(engine: Engine) -> None:
    engine.run("built", source_id=SOURCE)
    (engine.home / "registry").mkdir()
    (engine.home / "registry" / ident.short_source(SOURCE)).write_text('{"config": {"digest": "sha256:other"}}')
    assert engine.run("pushed", source_id=SOURCE)["changed"]


def test_no_space_is_said_before_the_build(engine: Engine) -> None:
    with pytest.raises(ImageError, match=r"bytes free, wanted 1\d{18} \(min_free_bytes\)"):
        engine.run("built", source_id=SOURCE, min_free_bytes=10**18)
    assert not engine.calls("build")


@pytest.mark.parametrize("missing", [True, False])
def test_without_an_engine_check_mode_plans_and_the_rest_says_why(
    engine: Engine, missing: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if missing:
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    else:
        (engine.home / "down").touch()
    probed = engine.run("probed")
    assert not probed["present"] and "docker" in probed["unobserved"][0]
    steps: list[tuple[str, dict[str, Any]]] = [
        ("built", {"source_id": SOURCE}),
        ("pushed", {"source_id": SOURCE}),
        ("pulled", {}),
    ]
    for state, options in steps:
        assert engine.run(state, check=True, **options)["changed"]
        if options:
            with pytest.raises(ident.NoEngine):
                engine.run(state, **options)


def test_buildkit_errors_name_the_step_that_failed_not_the_last_one_seen() -> None:
    said: list[tuple[int, int, str]] = []
    lines = transfer.Lines(lambda *each: said.append(each))
    for line in ("#5 [1/3] FROM base", "#6 [stage-1 2/3] RUN a", "#7 [ 3/3] COPY b c", "#6 ERROR: exit code: 1"):
        lines.read(line)
    assert lines.step == "Step 2/3 : RUN a" and said[-1] == (2, 3, "step 3: COPY b c")


def test_a_build_that_hangs_is_stopped_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="stopped after 0 s"):
        transfer.stream(
            ["sh", "-c", "echo 'Step 1/2 : RUN sleep'; sleep 60 & sleep 60"],
            transfer.Lines(lambda *_: None),
            timeout=0.3,
        )
