"""Make the lab's model on the spot: a tiny random DeepSeek-V3 (MLA + mixture of experts) with its own tokenizer.

The model answers with noise. What it proves is the path: a real checkpoint in the real format, fetched with hashes,
relayed, loaded tensor-parallel and asked through the API. The same seed gives the same bytes on every machine.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

NAME = "sparkmesh/tiny-dsv3"
SEED = 41

# Every size that tensor parallelism splits divides by 3 and by 4. vLLM pads a vocabulary to a multiple of 64 and then
# wants it divisible by the number of ranks, so 64 * lcm(3, 4) = 768 needs no padding at either size. The latent sizes
# (512 + 64) are the only ones that vLLM's MLA kernels for CPU are compiled for.
CONFIG: dict[str, object] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "dtype": "bfloat16",
    "vocab_size": 768,
    "hidden_size": 384,
    "intermediate_size": 768,
    "moe_intermediate_size": 384,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "q_lora_rank": 192,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 12,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    # transformers drops this key when it writes a config, and vLLM needs it to build the router's bias.
    "topk_method": "noaux_tc",
    "routed_scaling_factor": 2.5,
    "num_nextn_predict_layers": 0,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}

SPECIAL_TOKENS = ["<|begin|>", "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _sizes(*keys: str) -> list[int]:
    return [int(str(CONFIG[key])) for key in keys]


def shapes() -> dict[str, tuple[int, ...]]:
    """Return every tensor of the checkpoint as name -> shape, in the layout that vLLM and transformers load."""
    hidden, vocab, layers, dense, expert = _sizes(
        "hidden_size", "vocab_size", "num_hidden_layers", "intermediate_size", "moe_intermediate_size"
    )
    heads, q_rank, kv_rank, nope, rope, value = _sizes(
        "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
    )
    experts, first_moe = _sizes("n_routed_experts", "first_k_dense_replace")
    out: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }

    def mlp(prefix: str, width: int) -> None:
        out[f"{prefix}.gate_proj.weight"] = (width, hidden)
        out[f"{prefix}.up_proj.weight"] = (width, hidden)
        out[f"{prefix}.down_proj.weight"] = (hidden, width)

    for layer in range(layers):
        base = f"model.layers.{layer}"
        out[f"{base}.input_layernorm.weight"] = (hidden,)
        out[f"{base}.post_attention_layernorm.weight"] = (hidden,)
        out[f"{base}.self_attn.q_a_proj.weight"] = (q_rank, hidden)
        out[f"{base}.self_attn.q_a_layernorm.weight"] = (q_rank,)
        out[f"{base}.self_attn.q_b_proj.weight"] = (heads * (nope + rope), q_rank)
        out[f"{base}.self_attn.kv_a_proj_with_mqa.weight"] = (kv_rank + rope, hidden)
        out[f"{base}.self_attn.kv_a_layernorm.weight"] = (kv_rank,)
        out[f"{base}.self_attn.kv_b_proj.weight"] = (heads * (nope + value), kv_rank)
        out[f"{base}.self_attn.o_proj.weight"] = (hidden, heads * value)
        if layer < first_moe:
            mlp(f"{base}.mlp", dense)
            continue
        out[f"{base}.mlp.gate.weight"] = (experts, hidden)
        out[f"{base}.mlp.gate.e_score_correction_bias"] = (experts,)
        for index in range(experts):
            mlp(f"{base}.mlp.experts.{index}", expert)
        mlp(f"{base}.mlp.shared_experts", expert)
    return out


def weights(seed: int = SEED) -> dict[str, np.ndarray]:
    """Return the tensors, float32, drawn in name order so that adding one does not redraw the others before it.

    Norms are ones; the rest is normal with deviation 1/sqrt(fan in), which keeps activations near one through the
    layers. float32 on disk: NumPy has no bfloat16, and vLLM casts at load.
    """
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for name, shape in sorted(shapes().items()):
        if name.endswith(("norm.weight", "layernorm.weight")):
            made[name] = np.ones(shape, dtype=np.float32)
        else:
            made[name] = rng.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
    return made


def tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokenizer of exactly ``vocab_size`` tokens, trained on a fixed text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    # Invented words: enough distinct pairs to fill the vocabulary, and the same on every machine.
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    text = [f"{first}{second} {second}{first}{first}" for first in syllables for second in syllables[::7]]
    text += ["Which node are you, and what is the capital of the mesh?", "the quick brown fox jumps over the lazy dog"]
    trainer = trainers.BpeTrainer(
        vocab_size=_sizes("vocab_size")[0],
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    made.train_from_iterator(text, trainer)
    return made


def make(folder: Path) -> Path:
    """Write the model into ``folder`` (created when missing) unless it is there already, and return the folder.

    Raises ValueError when the tokenizer's size differs from the embedding's, which would make some ids unreadable.
    """
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    words = tokenizer()
    wanted = _sizes("vocab_size")[0]
    if words.get_vocab_size() != wanted:
        raise ValueError(
            f"tokenizer has {words.get_vocab_size()} tokens, the model wants {wanted}: "
            "give the training text more words"
        )
    words.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "pad_token": SPECIAL_TOKENS[2],
        "model_max_length": CONFIG["max_position_embeddings"],
        "chat_template": CHAT_TEMPLATE,
    }
    save_file(weights(), folder / "model.safetensors", metadata={"format": "pt"})
    documents = {
        "tokenizer_config.json": settings,
        "generation_config.json": {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
        "config.json": CONFIG,  # last: its presence marks a complete folder
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2) + "\n")
    return folder


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
