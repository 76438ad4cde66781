"""The lab's model: the same bytes everywhere, sizes that every topology can split, a tokenizer that fits."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from lab import tinymodel

ROOT = Path(__file__).parents[3]
FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinymodel.make(tmp_path_factory.mktemp("model") / "tiny")


def test_another_process_makes_the_same_bytes(made: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab.tinymodel", str(tmp_path / "tiny")]
    # Hash seed and threads are what differs between machines.
    environment = {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(digests(made)) == FILES
    assert digests(tmp_path / "tiny") == digests(made)


def test_a_complete_folder_is_left_alone(made: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}
    assert tinymodel.make(made) == made
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before


def test_the_checkpoint_holds_every_tensor_with_its_shape(made: Path) -> None:
    tensors = load_file(made / "model.safetensors")
    assert {name: tensor.shape for name, tensor in tensors.items()} == tinymodel.shapes()
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(np.float32)}
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())
    assert (tensors["model.norm.weight"] == 1).all() and tensors["lm_head.weight"].std() > 0
    assert not (tensors["lm_head.weight"] == tensors["model.embed_tokens.weight"]).any()


def test_another_seed_gives_other_weights() -> None:
    name = "lm_head.weight"
    assert not np.array_equal(tinymodel.weights()[name], tinymodel.weights(seed=tinymodel.SEED + 1)[name])


@pytest.mark.parametrize("ranks", [3, 4])
def test_every_size_that_ranks_split_divides(ranks: int) -> None:
    config = json.loads(json.dumps(tinymodel.CONFIG))
    keys = [
        "intermediate_size",
        "moe_intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "n_routed_experts",
    ]
    assert {key: config[key] % ranks for key in keys} == dict.fromkeys(keys, 0)
    # vLLM pads the vocabulary to 64 first; nothing may be padded.
    assert config["vocab_size"] % (64 * ranks) == 0
    # Split by rows are the projections that go out to heads or to the wide side, by columns those that come back.
    rows = ("q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "lm_head", "embed_tokens")
    columns = ("o_proj", "down_proj")
    split = {
        name: shape[0] if name.split(".")[-2] in rows else shape[1]
        for name, shape in tinymodel.shapes().items()
        if name.split(".")[-2] in rows + columns
    }
    # Two tables, q_b, kv_b and o of three layers, one dense MLP, and 12 + 1 experts in two layers.
    assert len(split) == 2 + 3 * 3 + 3 + 2 * 13 * 3
    assert {name: size for name, size in split.items() if size % ranks} == {}


def test_the_tokenizer_fills_the_embedding_and_speaks(made: Path) -> None:
    words = Tokenizer.from_file(str(made / "tokenizer.json"))
    assert words.get_vocab_size() == tinymodel.CONFIG["vocab_size"] == 768
    config = json.loads((made / "config.json").read_text())
    for key, token in zip(("bos_token_id", "eos_token_id", "pad_token_id"), tinymodel.SPECIAL_TOKENS, strict=False):
        assert words.token_to_id(token) == config[key]
    for text in ("Which node are you, and what is the capital of the mesh?", "Grüße, 世界 \n\t!"):
        assert words.decode(words.encode(text).ids) == text


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tinymodel.CONFIG, "vocab_size", 76800)
    with pytest.raises(ValueError, match=r"tokenizer has \d+ tokens, the model wants 76800: give the training"):
        tinymodel.make(tmp_path)
    assert not (tmp_path / "config.json").exists(), "a refused folder must not look complete"
