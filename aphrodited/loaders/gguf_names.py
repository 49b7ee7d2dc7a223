"""Names of tensors in GGUF files, translated to those of Hugging Face checkpoints."""

from __future__ import annotations

import re

from aphrodited.models.config import Architecture

ROTARY_FACTORS = "rope_freqs.weight"  # no weight: what each rotary frequency is divided by (Llama 3)

_MODEL_NAMES = {
    "llama": {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
    },
    "gpt_neox": {
        "token_embd": "gpt_neox.embed_in",
        "output_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
    },
}

_LAYER_NAMES = {
    "llama": {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
    "gpt_neox": {
        "attn_norm": "input_layernorm",
        "attn_qkv": "attention.query_key_value",
        "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
}


def hf_name(architecture: Architecture, name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name without one is returned as it is."""
    family, layers = ("gpt_neox", "gpt_neox.layers") if architecture is Architecture.GPT_NEOX else ("llama", "model.layers")
    part, _, kind = name.rpartition(".")  # "blk.0.attn_q", "weight"
    in_layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", part)
    if in_layer is None:
        known = _MODEL_NAMES[family].get(part)
        return f"{known}.{kind}" if known else name
    layer, part = in_layer.groups()
    known = _LAYER_NAMES[family].get(part)
    return f"{layers}.{layer}.{known}.{kind}" if known else name
