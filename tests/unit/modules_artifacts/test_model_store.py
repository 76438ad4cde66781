"""Checking, sealing and pruning a store in a temporary folder, against a small hub."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils import model_store, relay
from ansible_collections.sparkmesh.cluster.plugins.module_utils.progress import Progress
from ansible_collections.sparkmesh.cluster.plugins.module_utils.relay import StoreError
from ansible_collections.sparkmesh.cluster.plugins.modules import model_store as module

NAME, REVISION = "tiny", "0123456789" * 4
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 100, "sub/vocab.txt": b"a\nb\n"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def expected() -> dict[str, dict[str, Any]]:
    return {path: {"size": len(data), "sha256": sha256(data)} for path, data in FILES.items()}


def download(root: Path) -> Path:
    """What the hub client leaves in its local dir, its own notes included."""
    partial = root / NAME / f".partial-{REVISION}"
    for path, data in {**FILES, ".cache/huggingface/download/config.json.metadata": b"x"}.items():
        (partial / path).parent.mkdir(parents=True, exist_ok=True)
        (partial / path).write_bytes(data)
    return partial


def run(root: Path, state: str, check: bool = False, **options: Any) -> dict[str, Any]:
    params = {key: spec.get("default") for key, spec in module.SPEC.items()}
    given = {"root": str(root), "name": NAME, "revision": REVISION, "state": state, **options}
    return module.work({**params, **given}, check)


@pytest.fixture(autouse=True)
def progress(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keeps the module's progress file off this machine's /run; returns where it lies."""
    folder = tmp_path_factory.mktemp("progress")
    monkeypatch.setattr(module, "Progress", lambda name: Progress(name, str(folder)))
    return folder / "model.json"


@pytest.fixture
def hub() -> Iterator[tuple[str, dict[str, Any]]]:
    """(URL, the answer): the large file by sha256, the small ones by git blob id."""
    siblings: list[dict[str, Any]] = []
    for path, data in FILES.items():
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        lfs = {"sha256": sha256(data), "size": len(data), "pointerSize": 130}
        siblings.append(
            {
                "rfilename": path,
                "size": len(data),
                "blobId": blob,
                **({"lfs": lfs} if path.endswith("safetensors") else {}),
            }
        )
    answer: dict[str, Any] = {"sha": REVISION, "siblings": siblings}

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            good = self.path == f"/api/models/lab/tiny/revision/{REVISION}?blobs=true"
            body = json.dumps(answer).encode()
            self.send_response(200 if good else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api/models/lab/tiny/revision/{REVISION}?blobs=true", answer
    server.shutdown()
    server.server_close()


def test_seal_against_the_hub_then_check(tmp_path: Path, hub: tuple[str, dict[str, Any]], progress: Path) -> None:
    download(tmp_path)
    sealed = run(tmp_path, "sealed", hub_metadata_url=hub[0], repo="lab/tiny")
    seen = json.loads(progress.read_text())
    assert seen["step"] == seen["of"] == sealed["bytes"] and seen["started"] <= seen["updated"]
    assert sealed["changed"] and sealed["complete"] and sealed["manifest"] == relay.manifest_digest(expected())
    assert not run(tmp_path, "sealed", hub_metadata_url=hub[0])["changed"]
    store = tmp_path / NAME / REVISION
    assert sorted(each.name for each in store.iterdir()) == [".sparkmesh", "config.json", "model.safetensors", "sub"]
    checked = run(tmp_path, "checked", manifest=sealed["manifest"])
    assert checked["complete"] and not checked["changed"] and checked["bytes"] == sum(map(len, FILES.values()))
    wrong = run(tmp_path, "checked", manifest="sha256:" + "0" * 64)
    assert not wrong["complete"] and "wanted sha256:000" in wrong["reason"]


@pytest.mark.parametrize(
    ("path", "data", "words"),
    [
        ("config.json", b"[]", r"bad config\.json: seen git blob [0-9a-f]{40}, wanted git blob"),
        ("model.safetensors", b"\1" + FILES["model.safetensors"][1:], r"bad model\.safetensors: seen sha256:"),
        ("model.safetensors", b"short", r"bad model\.safetensors: seen 5 bytes, wanted 25600 bytes"),
        ("sub/vocab.txt", None, r"missing sub/vocab\.txt"),
        ("stranger.py", b"x", r"extra stranger\.py"),
    ],
)
def test_seal_refuses_by_name(
    tmp_path: Path, hub: tuple[str, dict[str, Any]], path: str, data: bytes | None, words: str
) -> None:
    partial = download(tmp_path)
    (partial / path).unlink() if data is None else (partial / path).write_bytes(data)
    with pytest.raises(StoreError, match=words):
        run(tmp_path, "sealed", hub_metadata_url=hub[0])
    assert not (tmp_path / NAME / REVISION).exists() and partial.exists()


def test_a_link_is_no_file_of_a_store(tmp_path: Path) -> None:
    partial = download(tmp_path)
    (tmp_path / "outside").write_bytes(FILES["config.json"])
    (partial / "config.json").unlink()
    (partial / "config.json").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match=r"bad config\.json"):
        run(tmp_path, "sealed", expected=expected())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda doc: doc.update(sha="f" * 40), "wanted 0123"),
        (lambda doc: doc["siblings"][0].update(rfilename="../../etc/x"), "refused"),
        (lambda doc: doc["siblings"][0].pop("blobId"), "no size or no hash"),
        (lambda doc: doc.pop("siblings"), "siblings"),
    ],
)
def test_a_hub_that_proves_nothing_is_refused(
    tmp_path: Path, hub: tuple[str, dict[str, Any]], change: Any, words: str
) -> None:
    download(tmp_path)
    change(hub[1])
    with pytest.raises(StoreError, match=words):
        run(tmp_path, "sealed", hub_metadata_url=hub[0])


def test_the_cache_spares_reading_and_deep_does_not_trust_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download(tmp_path)
    run(tmp_path, "sealed", expected=expected())
    read: list[str] = []
    real = model_store.hash_file

    def counted(folder: Path, path: str, blob_id: bool = False) -> Any:
        read.append(path)
        return real(folder, path, blob_id)

    monkeypatch.setattr(model_store, "hash_file", counted)
    victim = tmp_path / NAME / REVISION / "model.safetensors"
    assert run(tmp_path, "checked")["complete"] and read == []
    info = victim.stat()
    victim.write_bytes(b"\1" + FILES["model.safetensors"][1:])
    os.utime(victim, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert run(tmp_path, "checked")["complete"] and read == [], "same size, time and inode"
    deep = run(tmp_path, "checked", deep=True)
    assert [each["path"] for each in deep["files_bad"]] == ["model.safetensors"] and sorted(read) == sorted(FILES)
    assert not run(tmp_path, "checked")["complete"], "what deep found stays found"


def test_nothing_there_is_a_result_not_an_error(tmp_path: Path) -> None:
    for state in ("checked", "opened", "sealed", "relayed"):
        result = run(tmp_path / "none", state, check=True, upstreams=["http://127.0.0.1:1"], token="t" * 16)
        assert not result["complete"] and result["changed"] is (state != "checked")
    assert not run(tmp_path / "none", "checked")["complete"]
    assert run(tmp_path / "none", "pruned", check=True)["removable"] == {}
    assert not (tmp_path / "none").exists(), "and looking leaves nothing behind"


def test_an_edited_manifest_is_not_believed(tmp_path: Path) -> None:
    download(tmp_path)
    run(tmp_path, "sealed", expected=expected())
    where = tmp_path / NAME / REVISION / ".sparkmesh" / "manifest.json"
    doc = json.loads(where.read_text())
    doc["files"]["config.json"]["sha256"] = "0" * 64
    where.write_text(json.dumps(doc))
    result = run(tmp_path, "checked")
    assert not result["complete"] and "edited or damaged" in result["reason"]


def test_opened_keeps_the_good_files_of_a_damaged_store(tmp_path: Path) -> None:
    download(tmp_path)
    run(tmp_path, "sealed", expected=expected())
    (tmp_path / NAME / REVISION / "config.json").write_bytes(b"[]")
    opened = run(tmp_path, "opened")
    partial = Path(opened["partial"])
    assert opened["changed"] and not (partial / "config.json").exists() and (partial / "model.safetensors").exists()
    (partial / "config.json").write_bytes(FILES["config.json"])
    assert run(tmp_path, "sealed", expected=expected())["complete"]
    with pytest.raises(StoreError, match="bytes free, wanted 1"):
        run(tmp_path, "opened", revision="r2", expected_bytes=10**18)


def test_prune_needs_consent_and_keeps_what_it_must(tmp_path: Path) -> None:
    for each in ("r1", "r2", ".partial-r2", ".partial-r3", ".damaged-r1"):
        (tmp_path / NAME / each).mkdir(parents=True)
        (tmp_path / NAME / each / "f").write_bytes(b"x" * 5000)
    listed = run(tmp_path, "pruned", keep=["r2"])
    assert not listed["changed"] and sorted(listed["removable"]) == [".damaged-r1", ".partial-r3", "r1"]
    assert listed["removable"]["r1"] >= 5000 and "allow_prune" in listed["actions"][0]
    assert run(tmp_path, "pruned", check=True, keep=["r2"], allow_prune=True)["changed"]
    assert len(list((tmp_path / NAME).iterdir())) == 5
    assert run(tmp_path, "pruned", keep=["r2"], allow_prune=True)["changed"]
    assert sorted(each.name for each in (tmp_path / NAME).iterdir()) == [".partial-r2", "r2"]


@pytest.mark.parametrize("bad", ["../x", "", ".hidden", "a/b", "a\nb"])
def test_names_cannot_leave_the_root(tmp_path: Path, bad: str) -> None:
    both: list[dict[str, Any]] = [{"name": bad}, {"revision": bad}]
    for options in both:
        with pytest.raises(StoreError, match="not usable as a folder name"):
            run(tmp_path, "checked", **options)
    with pytest.raises(StoreError, match="not usable"):
        run(tmp_path, "pruned", keep=[bad], allow_prune=True)
