"""Writes a tiny model directory as a GGUF file, the way llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.support.tiny_gguf import byte_level_metadata

LLAMA_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
FAMILIES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gpt_neox": "gptneox"}
GPT_NEOX_NAMES = {
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "input_layernorm": "attn_norm",
    "attention.query_key_value": "attn_qkv",
    "attention.dense": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
}


def write_gguf_model(
    path: Path,
    directory: Path,
    *,
    matrix_type: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, Any] | None = None,
    leave_out: tuple[str, ...] = (),
    tensors: dict[str, NDArray[np.float32]] | None = None,
) -> Path:
    """Write the model of `directory` with its tokenizer. metadata and tensors are added, or replace what is there."""
    config = json.loads((directory / "config.json").read_text())
    family = FAMILIES[config["model_type"]]
    is_llama = family != "gptneox"
    writer = gguf.GGUFWriter(path, family)
    keys = (_llama_keys(config, family) if is_llama else _gpt_neox_keys(config)) | byte_level_metadata() | (metadata or {})
    for key, value in keys.items():
        _add(writer, key, value)
    for name, tensor in load_file(directory / "model.safetensors").items():
        gguf_name = _gguf_name(name, LLAMA_NAMES if is_llama else GPT_NEOX_NAMES)
        if gguf_name not in leave_out:
            _add_tensor(writer, gguf_name, _converted(name, tensor, config, family), matrix_type)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _llama_keys(config: dict[str, Any], family: str) -> dict[str, Any]:
    keys = {
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.attention.sliding_window": config.get("sliding_window"),
    }
    return {key.replace("llama.", f"{family}."): value for key, value in keys.items()}


def _gpt_neox_keys(config: dict[str, Any]) -> dict[str, Any]:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    return {
        "gptneox.context_length": config["max_position_embeddings"],
        "gptneox.embedding_length": config["hidden_size"],
        "gptneox.block_count": config["num_hidden_layers"],
        "gptneox.feed_forward_length": config["intermediate_size"],
        "gptneox.rope.dimension_count": int(head_dim * config["rotary_pct"]),
        "gptneox.attention.head_count": config["num_attention_heads"],
        "gptneox.use_parallel_residual": config["use_parallel_residual"],
        "gptneox.attention.layer_norm_epsilon": config["layer_norm_eps"],
    }


def _gguf_name(name: str, names: dict[str, str]) -> str:
    part, _, kind = name.rpartition(".")
    if ".layers." in part:
        layer, _, part = part.split(".layers.")[1].partition(".")
        return f"blk.{layer}.{names[part]}.{kind}"
    return f"{names[part]}.{kind}"


def _converted(name: str, tensor: NDArray[np.float32], config: dict[str, Any], family: str) -> NDArray[np.float32]:
    """The layout changes of convert_hf_to_gguf.py: interleaved rotary pairs, ungrouped fused projections."""
    heads = config["num_attention_heads"]
    if family == "llama" and (".q_proj." in name or ".k_proj." in name):
        heads = heads if ".q_proj." in name else config["num_key_value_heads"]
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
    if ".query_key_value." in name:
        grouped = tensor.reshape(heads, 3, tensor.shape[0] // heads // 3, *tensor.shape[1:])
        return np.ascontiguousarray(grouped.swapaxes(0, 1).reshape(tensor.shape))
    return tensor


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: NDArray[np.float32], matrix_type: gguf.GGMLQuantizationType
) -> None:
    if tensor.ndim == 1 or matrix_type == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, tensor)
    else:
        writer.add_tensor(name, gguf.quantize(tensor, matrix_type), raw_dtype=matrix_type)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
