"""Names of tensors in GGUF files, translated to those of Hugging Face checkpoints."""

from __future__ import annotations

import re

from aphrodited.models.config import Architecture

_LAYER_PREFIXES = {Architecture.LLAMA: "model.layers", Architecture.GPT_NEOX: "gpt_neox.layers"}

_MODEL_NAMES = {
    Architecture.LLAMA: {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
    },
    Architecture.GPT_NEOX: {
        "token_embd": "gpt_neox.embed_in",
        "output_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
    },
}

_LAYER_NAMES = {
    Architecture.LLAMA: {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
    Architecture.GPT_NEOX: {
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
    part, _, kind = name.rpartition(".")  # "blk.0.attn_q", "weight"
    in_layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", part)
    if in_layer is None:
        known = _MODEL_NAMES[architecture].get(part)
        return f"{known}.{kind}" if known else name
    layer, part = in_layer.groups()
    known = _LAYER_NAMES[architecture].get(part)
    return f"{_LAYER_PREFIXES[architecture]}.{layer}.{known}.{kind}" if known else name
