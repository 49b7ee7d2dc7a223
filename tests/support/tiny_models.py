"""Writes tiny model directories in the Hugging Face layout, in milliseconds and without a network.

The tokenizer is a byte-level BPE of 320 entries: it can encode every text, has one merge for each common short
piece, and three special tokens (`<|endoftext|>` 0, `<|im_start|>` 1, `<|im_end|>` 2; 2 is EOS, 1 is BOS).
torch is imported only when weights are asked for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 320
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_TOKEN_ID = 1
EOS_TOKEN_ID = 2

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CORPUS = [
    "the quick brown fox jumps over the lazy dog and then the dog sleeps in the sun",
    "a model writes one token after another until someone asks it to stop",
]


def build_tiny_tokenizer() -> Tokenizer:
    """The tokenizer itself, for tests that need no directory."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=1,
        special_tokens=[AddedToken(text, special=True) for text in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def write_tiny_tokenizer(path: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """Write tokenizer.json and tokenizer_config.json into the directory `path`; returns it."""
    path.mkdir(parents=True, exist_ok=True)
    build_tiny_tokenizer().save(str(path / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS_TOKEN_ID],
        "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "unk_token": SPECIAL_TOKENS[0],
        "pad_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 128,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    _write_json(path / "tokenizer_config.json", config)
    return path


def write_tiny_llama_dir(path: Path, *, weights: bool = True, seed: int = 0, **overrides: Any) -> Path:
    """Write a two-layer model of the Llama family; keyword arguments replace fields of its config.json."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": "float32",
    } | overrides
    return _write_model_dir(path, config, _llama_shapes(config) if weights else None, seed)


def write_tiny_neox_dir(path: Path, *, weights: bool = True, seed: int = 0, **overrides: Any) -> Path:
    """Write a two-layer GPT-NeoX model; keyword arguments replace fields of its config.json."""
    config = {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "layer_norm_eps": 1e-5,
        "rotary_emb_base": 10000,
        "rotary_pct": 0.25,
        "hidden_act": "gelu",
        "use_parallel_residual": True,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": EOS_TOKEN_ID,
        "torch_dtype": "float32",
    } | overrides
    return _write_model_dir(path, config, _neox_shapes(config) if weights else None, seed)


def _write_model_dir(
    path: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]] | None, seed: int
) -> Path:
    write_tiny_tokenizer(path)
    _write_json(path / "config.json", config)
    _write_json(
        path / "generation_config.json", {"bos_token_id": BOS_TOKEN_ID, "eos_token_id": config["eos_token_id"]}
    )
    if shapes is not None:
        _write_random_weights(path / "model.safetensors", shapes, seed)
    return path


def _llama_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key_value = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _variant_shapes(config).items()}
        shapes |= {
            f"model.layers.{layer}.{name}": shape
            for name, shape in {
                "self_attn.q_proj.weight": (query, hidden),
                "self_attn.k_proj.weight": (key_value, hidden),
                "self_attn.v_proj.weight": (key_value, hidden),
                "self_attn.o_proj.weight": (hidden, query),
                "mlp.gate_proj.weight": (inner, hidden),
                "mlp.up_proj.weight": (inner, hidden),
                "mlp.down_proj.weight": (hidden, inner),
                "input_layernorm.weight": (hidden,),
                "post_attention_layernorm.weight": (hidden,),
            }.items()
        }
    return shapes


def _variant_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """What a layer has in some models of the family only."""
    head_dim, shapes = config["head_dim"], {}
    if config["attention_bias"] or config["model_type"] == "qwen2":
        for name, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads"), ("v_proj", "num_key_value_heads")):
            shapes[f"self_attn.{name}.bias"] = (config[heads] * head_dim,)
    if config["attention_bias"]:
        shapes["self_attn.o_proj.bias"] = (config["hidden_size"],)
    if config["model_type"] == "qwen3":
        shapes |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    return shapes


def _neox_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "gpt_neox.embed_in.weight": (config["vocab_size"], hidden),
        "gpt_neox.final_layer_norm.weight": (hidden,),
        "gpt_neox.final_layer_norm.bias": (hidden,),
        "embed_out.weight": (config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, rows, columns in (
            ("attention.query_key_value", 3 * hidden, hidden),
            ("attention.dense", hidden, hidden),
            ("mlp.dense_h_to_4h", inner, hidden),
            ("mlp.dense_4h_to_h", hidden, inner),
        ):
            shapes[f"gpt_neox.layers.{layer}.{name}.weight"] = (rows, columns)
            shapes[f"gpt_neox.layers.{layer}.{name}.bias"] = (rows,)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"gpt_neox.layers.{layer}.{norm}.weight"] = (hidden,)
            shapes[f"gpt_neox.layers.{layer}.{norm}.bias"] = (hidden,)
    return shapes


def _write_random_weights(path: Path, shapes: dict[str, tuple[int, ...]], seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        is_norm_scale = "norm" in name and name.endswith("weight")
        tensors[name] = 1.0 + 0.1 * noise if is_norm_scale else 0.3 * noise
    save_file(tensors, path, metadata={"format": "pt"})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
