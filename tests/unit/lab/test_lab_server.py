"""The lab server over real HTTP on the loopback: hub, registry, wheels."""

import hashlib
import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from lab import baseimage, server
from lab.hub import Hub

WEIGHTS = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    root = tmp_path_factory.mktemp("lab")
    repo = root / "hub" / "acme" / "tiny"
    (repo / "sub").mkdir(parents=True)
    (repo / "model.safetensors").write_bytes(WEIGHTS)
    (repo / "config.json").write_text("{}")
    (repo / "sub" / "a b.txt").write_text("hello\n")
    (repo / "empty.txt").touch()
    (repo / ".cache").mkdir()
    (repo / ".cache" / "lock").write_text("never served")
    (root / "secret.whl").write_text("outside")
    (root / "wheels").mkdir()
    (root / "wheels" / "x-1+cpu-py3-none-any.whl").write_bytes(b"wheel")
    (root / "wheels" / "notes.txt").write_text("no wheel")
    base = root / "base"
    (base / "blobs" / "sha256").mkdir(parents=True)
    layer = base / "blobs" / "sha256" / hashlib.sha256(b"layer").hexdigest()
    layer.write_bytes(b"layer")
    descriptor = {"mediaType": "x", "digest": f"sha256:{layer.name}", "size": 5}
    baseimage._describe(base, "sha256:" + "0" * 64, descriptor, "amd64")
    with server.serve("127.0.0.1", 0, root / "hub", base, root / "wheels") as running:
        thread = Thread(target=running.serve_forever)
        thread.start()
        yield running.server_address[1]
        running.shutdown()
        thread.join()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def data(port: int, path: str) -> Any:
    answer, body = ask(port, path)
    assert answer.status == 200, body
    return json.loads(body)


def test_model_info_names_a_commit_of_forty_hex_and_all_files(port: int) -> None:
    info = data(port, "/api/models/acme/tiny")
    assert len(info["sha"]) == 40 and int(info["sha"], 16)
    assert [s["rfilename"] for s in info["siblings"]] == [
        "config.json",
        "empty.txt",
        "model.safetensors",
        "sub/a b.txt",
    ]
    assert data(port, f"/api/models/acme/tiny/revision/{info['sha']}") == info


def test_only_large_files_have_a_published_hash(port: int) -> None:
    siblings = {s["rfilename"]: s for s in data(port, "/api/models/acme/tiny/revision/main?blobs=true")["siblings"]}
    assert siblings["model.safetensors"]["lfs"]["sha256"] == hashlib.sha256(WEIGHTS).hexdigest()
    # git's well-known id of a file that holds "{}"
    assert siblings["config.json"]["blobId"] == "9e26dfeeb6e641a33dae4961196235bdb965b21b"
    assert "lfs" not in siblings["config.json"]


def test_tree_lists_folders_and_goes_deep_on_request(port: int) -> None:
    flat = data(port, "/api/models/acme/tiny/tree/main")
    assert [(row["type"], row["path"]) for row in flat if "/" in row["path"] or row["type"] == "directory"] == [
        ("directory", "sub")
    ]
    deep = data(port, "/api/models/acme/tiny/tree/main?recursive=True")
    assert {row["path"] for row in deep} == {"config.json", "empty.txt", "model.safetensors", "sub", "sub/a b.txt"}
    assert [row["path"] for row in data(port, "/api/models/acme/tiny/tree/main/sub")] == ["sub/a b.txt"]


def test_resolve_head_and_get_agree(port: int) -> None:
    path = "/acme/tiny/resolve/main/model.safetensors"
    head, nothing = ask(port, path, "HEAD")
    got, body = ask(port, path)
    assert nothing == b"" and body == WEIGHTS
    sha = hashlib.sha256(WEIGHTS).hexdigest()
    for answer in (head, got):
        assert answer.getheader("ETag") == answer.getheader("X-Linked-Etag") == f'"{sha}"'
        assert answer.getheader("X-Linked-Size") == answer.getheader("Content-Length") == str(len(WEIGHTS))
        assert answer.getheader("X-Repo-Commit") == data(port, "/api/models/acme/tiny")["sha"]
        assert answer.getheader("X-Xet-Hash") is None
    assert ask(port, "/acme/tiny/resolve/main/sub/a%20b.txt")[1] == b"hello\n"
    assert ask(port, "/acme/tiny/resolve/main/empty.txt")[0].getheader("Content-Length") == "0"


@pytest.mark.parametrize(
    ("header", "first", "last"),
    [("bytes=0-0", 0, 0), ("bytes=10-19", 10, 19), ("bytes=10200-", 10200, 10239), ("bytes=-5", 10235, 10239)],
)
def test_ranges(port: int, header: str, first: int, last: int) -> None:
    answer, body = ask(port, "/acme/tiny/resolve/main/model.safetensors", Range=header)
    assert answer.status == 206 and body == WEIGHTS[first : last + 1]
    assert answer.getheader("Content-Range") == f"bytes {first}-{last}/{len(WEIGHTS)}"


def test_a_range_behind_the_end_is_416(port: int) -> None:
    answer, _ = ask(port, "/acme/tiny/resolve/main/model.safetensors", Range="bytes=10240-")
    assert (answer.status, answer.getheader("Content-Range")) == (416, "bytes */10240")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/models/acme/none", "RepoNotFound"),
        ("/acme/tiny/resolve/main/none", "EntryNotFound"),
        ("/acme/tiny/resolve/main/.cache/lock", "EntryNotFound"),
        ("/acme/tiny/resolve/v9/config.json", "RevisionNotFound"),
        ("/api/models/..%2Ftiny/acme", "EntryNotFound"),
        ("/api/models/../tiny", "EntryNotFound"),
        ("/wheels/..%2Fsecret.whl", "EntryNotFound"),
        ("/wheels/notes.txt", "EntryNotFound"),
        ("/", "EntryNotFound"),
    ],
)
def test_what_is_not_there_has_the_hubs_error_code(port: int, path: str, code: str) -> None:
    answer, _ = ask(port, path)
    assert (answer.status, answer.getheader("X-Error-Code")) == (404, code)


def test_commit_follows_the_content(tmp_path: Path) -> None:
    repo = tmp_path / "a" / "b"
    repo.mkdir(parents=True)
    hub = Hub(tmp_path)
    (repo / "x").write_text("1")
    first = hub.entries("a/b")[0]
    assert hub.entries("a/b")[0] == first
    (repo / "x").write_text("22")
    assert hub.entries("a/b")[0] != first


def test_registry_answers_as_docker_asks(port: int) -> None:
    assert ask(port, "/v2/")[0].getheader("Docker-Distribution-Api-Version") == "registry/2.0"
    by_tag, body = ask(port, "/v2/lab/base/manifests/bookworm-py311")
    digest = by_tag.getheader("Docker-Content-Digest")
    assert digest == f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert by_tag.getheader("Content-Type") == baseimage.MANIFEST_TYPE
    assert ask(port, f"/v2/lab/base/manifests/{digest}")[1] == body
    assert ask(port, f"/v2/lab/base/manifests/{digest}", "HEAD")[0].getheader("Content-Length") == str(len(body))
    manifest = json.loads(body)
    for blob in (manifest["config"], *manifest["layers"]):
        content = ask(port, f"/v2/lab/base/blobs/{blob['digest']}")[1]
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == blob["digest"] and len(content) == blob["size"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v2/other/manifests/latest", "NAME_UNKNOWN"),
        ("/v2/lab/base/manifests/latest", "MANIFEST_UNKNOWN"),
        ("/v2/lab/base/blobs/sha256:" + "0" * 64, "BLOB_UNKNOWN"),
        ("/v2/lab/base/blobs/index.json", "BLOB_UNKNOWN"),
    ],
)
def test_registry_errors(port: int, path: str, code: str) -> None:
    answer, body = ask(port, path)
    assert (answer.status, json.loads(body)["errors"][0]["code"]) == (404, code)


def test_wheels_are_listed_for_pip_and_quoted(port: int) -> None:
    page = ask(port, "/wheels/")[1].decode()
    assert page.count("<a href=") == 1 and 'href="/wheels/x-1%2Bcpu-py3-none-any.whl"' in page
    assert ask(port, "/wheels/x-1%2Bcpu-py3-none-any.whl")[1] == b"wheel"


def test_the_real_hub_client_downloads(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    endpoint = f"http://127.0.0.1:{port}"
    folder = Path(hub.HfApi(endpoint=endpoint).snapshot_download("acme/tiny", cache_dir=tmp_path))
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert folder.name == data(port, "/api/models/acme/tiny")["sha"]
