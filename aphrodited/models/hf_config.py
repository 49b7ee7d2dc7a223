"""Reads the JSON of a Hugging Face model directory as a ModelArchitecture.

Strict where a wrong guess would give wrong numbers: what is not supported is refused, with what is. Knows no tensors.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aphrodited.errors import ModelLoadError
from aphrodited.layers.linear import Activation
from aphrodited.models.config import Architecture, ModelArchitecture
from aphrodited.models.config_fields import ConfigFields
from aphrodited.models.hf_rope import read_rope

_MODEL_TYPES = {
    Architecture.LLAMA: "llama",
    Architecture.MISTRAL: "mistral",
    Architecture.QWEN2: "qwen2",
    Architecture.QWEN3: "qwen3",
    Architecture.GPT_NEOX: "gpt_neox",
}
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}  # whether there is a window

# What transformers' configuration classes take for a field that is not there.
_QWEN3_HEAD_DIM = 128
_MISTRAL_WINDOW = 4096
_QWEN_WINDOW = 4096
_QWEN_FULL_LAYERS = 28


def read_architecture(directory: Path) -> ModelArchitecture:
    """From config.json, and generation_config.json if there is one. Raises ModelLoadError."""
    config_path, generation_path = directory / "config.json", directory / "generation_config.json"
    config = ConfigFields(_read_json(config_path), str(config_path))
    generation = ConfigFields(_read_json(generation_path) if generation_path.exists() else {}, str(generation_path))
    return parse_architecture(config, generation)


def parse_architecture(config: ConfigFields, generation: ConfigFields) -> ModelArchitecture:
    """The architecture that the two configs describe. Raises ModelLoadError."""
    architecture = _architecture(config)
    if config.get("quantization_config") is not None:
        raise config.error("quantization_config: quantised checkpoints are supported as GGUF files only")
    is_neox = architecture is Architecture.GPT_NEOX
    num_heads, hidden_size = config.integer("num_attention_heads"), config.integer("hidden_size")
    num_kv_heads = num_heads if is_neox else config.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.error(f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    head_dim, num_layers = _head_dim(config, architecture), config.integer("num_hidden_layers")
    rope = read_rope(config, head_dim, is_neox=is_neox)
    has_qkv_bias, has_output_bias = _attention_biases(config, architecture)
    has_mlp_bias = architecture in (Architecture.LLAMA, Architecture.GPT_NEOX) and config.flag("mlp_bias", is_neox)
    bos_token_ids = config.token_ids("bos_token_id")
    return ModelArchitecture(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=rope.max_length,
        eos_token_ids=tuple(
            dict.fromkeys(config.token_ids("eos_token_id") + generation.token_ids("eos_token_id"))
        ),
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        rope_theta=rope.theta,
        rotary_dim=rope.rotary_dim,
        norm_eps=config.number("layer_norm_eps", 1e-5) if is_neox else config.number("rms_norm_eps", 1e-6),
        activation=_activation(config, Activation.GELU if is_neox else Activation.SILU),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        has_qkv_bias=has_qkv_bias,
        has_output_bias=has_output_bias,
        has_mlp_bias=has_mlp_bias,
        has_parallel_residual=is_neox and config.flag("use_parallel_residual", True),
        has_qk_norm=architecture is Architecture.QWEN3,
        rope_scaling=rope.scaling,
        sliding_windows=_sliding_windows(config, architecture, num_layers),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: there is no such file; a model directory needs one") from None
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: expected an object with the model's fields")
    return value


def _architecture(config: ConfigFields) -> Architecture:
    names, model_type = config.get("architectures"), config.get("model_type")
    names = names if isinstance(names, list) else []
    for architecture, type_name in _MODEL_TYPES.items():
        if architecture in names or (not names and model_type == type_name):
            return architecture
    found = ", ".join(map(str, names)) or f"model_type {model_type!r}"
    raise config.error(f"{found} is not supported; supported are {', '.join(Architecture)}")


def _activation(config: ConfigFields, default: Activation) -> Activation:
    name = config.get("hidden_act") or default
    try:
        return Activation(name)
    except ValueError:
        supported = ", ".join(a for a in Activation if a is not Activation.NONE)
        raise config.error(f"hidden_act {name!r} is not supported; supported are {supported}") from None


def _head_dim(config: ConfigFields, architecture: Architecture) -> int:
    num_heads, hidden_size = config.integer("num_attention_heads"), config.integer("hidden_size")
    if architecture is Architecture.QWEN3:
        return config.integer("head_dim", _QWEN3_HEAD_DIM)
    if architecture is not Architecture.GPT_NEOX:
        return config.integer("head_dim", hidden_size // num_heads)
    if hidden_size % num_heads:
        raise config.error(f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}")
    return hidden_size // num_heads


def _attention_biases(config: ConfigFields, architecture: Architecture) -> tuple[bool, bool]:
    """Whether the projections to queries, keys and values have biases, and whether the one after attention has."""
    if architecture is Architecture.MISTRAL:
        return False, False
    if architecture is Architecture.QWEN2:
        return True, False
    has_bias = config.flag("attention_bias", architecture is Architecture.GPT_NEOX)
    return has_bias, has_bias


def _sliding_windows(config: ConfigFields, architecture: Architecture, num_layers: int) -> tuple[int | None, ...]:
    """Keys that a token sees, by layer; () where every layer sees all."""
    if architecture is Architecture.MISTRAL:
        if config.get("layer_types") is not None:
            raise config.error("layer_types is not supported for MistralForCausalLM, whose layers all have one window")
        window = _window(config, _MISTRAL_WINDOW)
        return (window,) * num_layers if window else ()
    if architecture not in (Architecture.QWEN2, Architecture.QWEN3):
        return ()
    window = _window(config, _QWEN_WINDOW) if config.flag("use_sliding_window", False) else None
    slides = _sliding_layers(config, num_layers)
    if window is None and config.get("layer_types") is not None and any(slides):
        raise config.error("layer_types has sliding_attention, but use_sliding_window or sliding_window is off")
    return tuple(window if slide else None for slide in slides) if window and any(slides) else ()


def _sliding_layers(config: ConfigFields, num_layers: int) -> list[bool]:
    """Which layers have a window, if there is one. Older configs give the number of those before them."""
    layer_types = config.get("layer_types")
    if layer_types is None:
        is_zero = config.get("max_window_layers") == 0
        num_full = 0 if is_zero else config.integer("max_window_layers", _QWEN_FULL_LAYERS)
        return [layer >= num_full for layer in range(num_layers)]
    names = [str(name) for name in layer_types] if isinstance(layer_types, list) else []
    if len(names) != num_layers or not set(names) <= set(_LAYER_TYPES):
        supported = ", ".join(_LAYER_TYPES)
        raise config.error(f"layer_types is {layer_types!r}, expected one for each of {num_layers} layers, of {supported}")
    return [_LAYER_TYPES[name] for name in names]


def _window(config: ConfigFields, default: int) -> int | None:
    if "sliding_window" in config and config.get("sliding_window") is None:
        return None
    return config.integer("sliding_window", default)
