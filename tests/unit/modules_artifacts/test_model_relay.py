"""Loopback relays between real stores in temporary folders."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.sparkmesh.cluster.plugins.module_utils import model_store, relay, relay_link, relay_pull
from ansible_collections.sparkmesh.cluster.plugins.module_utils.relay import StoreError

TOKEN = "0123456789abcdef-token"
NAME, REVISION = "tiny", "r1"
SPAN = 64 << 10
COLLECTIONS = str(Path(relay.__file__).parents[5])


def contents(seed: int = 7) -> dict[str, bytes]:
    rng = random.Random(seed)
    return {
        "config.json": b'{"a": 1}',
        "empty.txt": b"",
        "model-1.safetensors": rng.randbytes(700_001),
        "model-2.safetensors": rng.randbytes(SPAN * 4),
        "sub/dir/tokenizer #1.json": rng.randbytes(999),
    }


def seal_head(root: Path, files: dict[str, bytes]) -> str:
    partial = Path(relay.partial_dir(str(root), NAME, REVISION))
    for path, data in files.items():
        (partial / path).parent.mkdir(parents=True, exist_ok=True)
        (partial / path).write_bytes(data)
    expected = {path: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in files.items()}
    return model_store.seal(str(root), NAME, REVISION, expected, repo="lab/tiny").manifest


class Farm:
    """Starts relays and closes exactly those."""

    def __init__(self) -> None:
        self.servers: list[object] = []

    def serve(self, root: Path, shared: relay.Relay | None = None) -> str:
        (server,) = relay.start(shared or relay.Relay(str(root), TOKEN), ["127.0.0.1"], 0)
        self.servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def farm() -> Iterator[Farm]:
    each = Farm()
    yield each
    for server in each.servers:
        server.shutdown()  # type: ignore[attr-defined]
        server.server_close()  # type: ignore[attr-defined]


def pull(root: Path, url: str, manifest: str, **options: object) -> relay_pull.Pulled:
    given = {"threads": 4, "span": SPAN, "stall": 20.0, **options}
    return relay_pull.pull(str(root), NAME, REVISION, [url], token=TOKEN, manifest=manifest, **given)  # type: ignore[arg-type]


def same(root: Path, files: dict[str, bytes]) -> bool:
    final = Path(relay.final_dir(str(root), NAME, REVISION))
    return all((final / path).read_bytes() == data for path, data in files.items())


def ask(url: str, path: str, token: str = TOKEN, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}", **headers})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, dict(answer.headers)


def test_pull_is_whole_proved_and_idempotent(tmp_path: Path, farm: Farm) -> None:
    files = contents()
    manifest = seal_head(tmp_path / "a", files)
    done = pull(tmp_path / "b", farm.serve(tmp_path / "a"), manifest)
    assert done.changed and done.received == sum(map(len, files.values())) and same(tmp_path / "b", files)
    report = model_store.check(str(tmp_path / "b"), NAME, REVISION, manifest=manifest, deep=True)
    assert report.complete and sorted(report.files_ok) == sorted(files)
    assert [each.name for each in (tmp_path / "b" / NAME).iterdir()] == [REVISION]
    again = pull(tmp_path / "b", "http://127.0.0.1:1", manifest)
    assert not again.changed and again.received == 0


def test_chain_passes_files_on_while_the_middle_still_receives(tmp_path: Path, farm: Farm) -> None:
    files = contents()
    manifest = seal_head(tmp_path / "a", files)
    head = relay.Relay(str(tmp_path / "a"), TOKEN)
    gate, held = threading.Event(), "model-1.safetensors"
    whole = head.verified_file

    def gated(folder: Path, doc: dict, path: str):  # type: ignore[no-untyped-def, type-arg]
        return None if path == held and not gate.is_set() else whole(folder, doc, path)

    head.verified_file = gated  # type: ignore[method-assign, assignment]
    first, second = farm.serve(tmp_path / "a", head), farm.serve(tmp_path / "b")
    crew = [
        threading.Thread(target=pull, args=(tmp_path / "b", first, manifest)),
        threading.Thread(target=pull, args=(tmp_path / "c", second, manifest)),
    ]
    for each in crew:
        each.start()
    last = tmp_path / "c" / NAME / f".partial-{REVISION}"
    deadline = time.monotonic() + 15
    proved: set[str] = set()
    while time.monotonic() < deadline and proved != set(files) - {held}:
        if (verified := last / relay.META / "verified.json").exists():
            proved = set(json.loads(verified.read_text()))
        time.sleep(0.05)
    assert proved == set(files) - {held}, "the end of the chain has all the middle has"
    assert not (tmp_path / "b" / NAME / REVISION).exists(), "and the middle is not done"
    gate.set()
    for each in crew:
        each.join(20)
    assert same(tmp_path / "b", files) and same(tmp_path / "c", files)


def test_a_file_flipped_after_its_proof_is_refused_by_name_after_three_fetches(tmp_path: Path, farm: Farm) -> None:
    files = contents()
    manifest = seal_head(tmp_path / "a", files)
    victim = tmp_path / "a" / NAME / REVISION / "model-2.safetensors"
    flip(victim, keep_time=True)
    with pytest.raises(StoreError, match=r"model-2\.safetensors: seen sha256:[0-9a-f]{64} after 3 fetches, wanted"):
        pull(tmp_path / "b", farm.serve(tmp_path / "a"), manifest)
    assert not (tmp_path / "b" / NAME / REVISION).exists()
    victim.write_bytes(files["model-2.safetensors"])
    model_store.check(str(tmp_path / "a"), NAME, REVISION)
    done = pull(tmp_path / "b", farm.serve(tmp_path / "a"), manifest)
    assert done.received == len(files["model-2.safetensors"]) and same(tmp_path / "b", files)


def flip(path: Path, keep_time: bool) -> None:
    info, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    if keep_time:
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def test_a_byte_flipped_once_on_the_way_is_fetched_again(
    tmp_path: Path, farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = contents()
    manifest = seal_head(tmp_path / "a", files)
    real = relay_link.Upstream.get
    spoilt: list[str] = []

    def get(self, path, span, sink):  # type: ignore[no-untyped-def]
        def bad(block: memoryview) -> None:
            if path.endswith("model-1.safetensors") and not spoilt:
                spoilt.append(path)
                block[0] ^= 0xFF
            sink(block)

        real(self, path, span, bad)

    monkeypatch.setattr(relay_link.Upstream, "get", get)
    done = pull(tmp_path / "b", farm.serve(tmp_path / "a"), manifest)
    assert done.refetched == ["model-1.safetensors"] and same(tmp_path / "b", files)


def landed(journal: Path) -> int:
    """Bytes that the journal's whole lines say are on disk."""
    lines = journal.read_text().split("\n")[1:-1] if journal.exists() else []
    return sum(line["end"] - line["start"] for line in map(json.loads, lines) if "end" in line)


def test_killed_pull_resumes_and_does_not_fetch_finished_ranges_again(tmp_path: Path, farm: Farm) -> None:
    files = contents() | {"model-0.safetensors": random.Random(1).randbytes(SPAN * 40)}
    manifest = seal_head(tmp_path / "a", files)
    head = relay.Relay(str(tmp_path / "a"), TOKEN)
    whole = head.verified_file

    def slow(folder, doc, path):  # type: ignore[no-untyped-def]
        time.sleep(0.05)
        return whole(folder, doc, path)

    head.verified_file = slow  # type: ignore[method-assign]
    url = farm.serve(tmp_path / "a", head)
    code = (
        "from ansible_collections.sparkmesh.cluster.plugins.module_utils import relay_pull; relay_pull.pull("
        f"{str(tmp_path / 'b')!r}, {NAME!r}, {REVISION!r}, [{url!r}], token={TOKEN!r}, manifest={manifest!r}, "
        f"threads=2, span={SPAN})"
    )
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": COLLECTIONS})
    journal = tmp_path / "b" / NAME / f".partial-{REVISION}" / relay.META / "ranges.jsonl"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and landed(journal) < 8 * SPAN:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    assert child.returncode == -signal.SIGKILL, "it was still receiving"
    with journal.open("a") as stream:
        stream.write('{"path": "model-0.safetens')
    done = pull(tmp_path / "b", url, manifest)
    assert done.resumed >= 8 * SPAN and done.received + done.resumed == sum(map(len, files.values()))
    assert same(tmp_path / "b", files)


def test_a_damaged_store_is_repaired_with_the_bad_file_only(tmp_path: Path, farm: Farm) -> None:
    files = contents()
    manifest = seal_head(tmp_path / "a", files)
    url = farm.serve(tmp_path / "a")
    pull(tmp_path / "b", url, manifest)
    flip(tmp_path / "b" / NAME / REVISION / "model-1.safetensors", keep_time=False)
    (tmp_path / "b" / NAME / REVISION / "stranger.bin").write_bytes(b"x")
    done = pull(tmp_path / "b", url, manifest)
    assert done.received == len(files["model-1.safetensors"]) and same(tmp_path / "b", files)
    assert not (tmp_path / "b" / NAME / REVISION / "stranger.bin").exists()


def test_wrong_token_is_401_and_ends_the_pull_at_once(tmp_path: Path, farm: Farm) -> None:
    manifest = seal_head(tmp_path / "a", contents())
    url = farm.serve(tmp_path / "a")
    assert ask(url, f"/manifest/{NAME}/{REVISION}", token="wrong")[0] == 401
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"401.*token of the same run"):
        relay_pull.pull(str(tmp_path / "b"), NAME, REVISION, [url], token="another-token-of-16", manifest=manifest)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/file/{NAME}/{REVISION}/../../../../etc/passwd", 400),
        (f"/file/{NAME}/{REVISION}/%2e%2e/%2e%2e/secret", 400),
        (f"/file/{NAME}/{REVISION}//etc/passwd", 400),
        (f"/file/{NAME}/..%2f..%2f/config.json", 400),
        (f"/file/..%2f/{REVISION}/config.json", 400),
        (f"/file/{NAME}/{REVISION}/.sparkmesh/verified.json", 400),
        (f"/file/{NAME}/{REVISION}/secret", 404),
        (f"/file/{NAME}/other/config.json", 404),
        ("/", 404),
    ],
)
def test_nothing_outside_the_manifest_is_reachable(tmp_path: Path, farm: Farm, path: str, status: int) -> None:
    seal_head(tmp_path / "a", contents())
    (tmp_path / "a" / NAME / "secret").write_text("secret")
    (tmp_path / "a" / NAME / REVISION / "secret").write_text("secret")
    seen, body, _ = ask(farm.serve(tmp_path / "a"), path)
    assert seen == status and b"secret\n" not in body and body != b"secret"


def test_a_link_or_a_changed_file_is_not_served(tmp_path: Path, farm: Farm) -> None:
    seal_head(tmp_path / "a", contents())
    url, store = farm.serve(tmp_path / "a"), tmp_path / "a" / NAME / REVISION
    assert ask(url, f"/file/{NAME}/{REVISION}/config.json")[:2] == (200, b'{"a": 1}')
    flip(store / "config.json", keep_time=False)
    status, _, headers = ask(url, f"/file/{NAME}/{REVISION}/config.json")
    assert status == 404 and headers["X-Sparkmesh"] == "not-yet"
    (store / "sub").rename(tmp_path / "elsewhere")
    (store / "sub").symlink_to(tmp_path / "elsewhere")
    assert ask(url, f"/file/{NAME}/{REVISION}/sub/dir/tokenizer%20%231.json")[0] == 404


def test_ranges(tmp_path: Path, farm: Farm) -> None:
    files = contents()
    seal_head(tmp_path / "a", files)
    url, path = farm.serve(tmp_path / "a"), f"/file/{NAME}/{REVISION}/model-1.safetensors"
    data = files["model-1.safetensors"]
    status, body, headers = ask(url, path, Range="bytes=10-19")
    assert (status, body, headers["Content-Range"]) == (206, data[10:20], f"bytes 10-19/{len(data)}")
    assert ask(url, path, Range="bytes=700000-")[1] == data[700000:]
    assert ask(url, path, Range=f"bytes={len(data)}-")[0] == 416
    assert ask(url, f"/file/{NAME}/{REVISION}/empty.txt")[:2] == (200, b"")


def test_another_manifest_than_the_heads_is_refused(tmp_path: Path, farm: Farm) -> None:
    seal_head(tmp_path / "a", contents())
    with pytest.raises(StoreError, match=r"manifest: seen 'sha256:[0-9a-f]+', wanted 'sha256:0+'"):
        pull(tmp_path / "b", farm.serve(tmp_path / "a"), "sha256:" + "0" * 64)


def test_a_silent_neighbour_is_waited_for_only_so_long(tmp_path: Path, farm: Farm) -> None:
    url = farm.serve(tmp_path / "a")
    with pytest.raises(StoreError, match=r"no manifest of tiny@r1 within 1 s: .*does not have it yet"):
        pull(tmp_path / "b", url, "sha256:" + "0" * 64, stall=1.0)
    manifest = seal_head(tmp_path / "a", contents())
    (tmp_path / "a" / NAME / REVISION / "model-2.safetensors").unlink()
    with pytest.raises(StoreError, match=r"no byte came for 1 s; waiting for model-2\.safetensors"):
        pull(tmp_path / "b", url, manifest, stall=1.0)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "spark-1", "224.0.0.1", "255.255.255.255"])
def test_never_listens_on_all(address: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="address"):
        relay.start(relay.Relay(str(tmp_path), TOKEN), [address], 0)


def test_the_program_runs_alone_and_stops_when_idle(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o644)
    argv = [
        sys.executable,
        "-I",
        relay.__file__,
        "--root",
        str(tmp_path),
        "--listen",
        "127.0.0.1",
        "--port",
        "0",
        "--token-file",
        str(token),
        "--idle",
        "0.4",
    ]
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert refused.returncode == 1 and "mode 0644, wanted 0600" in refused.stderr
    token.chmod(0o600)
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 0 and "stopping" in ended.stderr
