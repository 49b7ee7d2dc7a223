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

_MODEL_TYPES = {Architecture.LLAMA: "llama", Architecture.GPT_NEOX: "gpt_neox"}


class ConfigFields:
    """The fields of one config, each checked when it is read. `source` names the file in errors."""

    def __init__(self, fields: dict[str, Any], source: str) -> None:
        self.source = source
        self._fields = fields

    def error(self, problem: str) -> ModelLoadError:
        return ModelLoadError(f"{self.source}: {problem}")

    def get(self, name: str) -> Any:
        return self._fields.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer; required unless there is a default."""
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(f"{name} is {value!r}, expected a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number; required unless there is a default."""
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.error(f"{name} is {value!r}, expected a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{name} is {value!r}, expected true or false")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """An id, a list of ids, or nothing."""
        value = self._fields.get(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
            raise self.error(f"{name} is {value!r}, expected a token id or a list of them")
        return tuple(values)


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
    num_heads, hidden_size = config.integer("num_attention_heads"), config.integer("hidden_size")
    is_llama = architecture is Architecture.LLAMA
    head_dim = config.integer("head_dim", hidden_size // num_heads) if is_llama else hidden_size // num_heads
    if not is_llama and head_dim * num_heads != hidden_size:
        raise config.error(f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}")
    num_kv_heads = config.integer("num_key_value_heads", num_heads) if is_llama else num_heads
    if num_heads % num_kv_heads:
        raise config.error(f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    rope_theta, rotary_dim = _rope(config, architecture, head_dim)
    bos_token_ids = config.token_ids("bos_token_id")
    return ModelArchitecture(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=config.integer("max_position_embeddings"),
        eos_token_ids=tuple(
            dict.fromkeys(config.token_ids("eos_token_id") + generation.token_ids("eos_token_id"))
        ),
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        rope_theta=rope_theta,
        rotary_dim=rotary_dim,
        norm_eps=config.number("rms_norm_eps" if is_llama else "layer_norm_eps", 1e-6 if is_llama else 1e-5),
        activation=_activation(config, Activation.SILU if is_llama else Activation.GELU),
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        has_attention_bias=config.flag("attention_bias", not is_llama),
        has_mlp_bias=config.flag("mlp_bias", not is_llama),
        has_parallel_residual=config.flag("use_parallel_residual", True) if not is_llama else False,
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


def _rope(config: ConfigFields, architecture: Architecture, head_dim: int) -> tuple[float, int]:
    """Theta and the number of rotating dimensions. Newer configs keep them in rope_parameters, older at the top."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise config.error(f"rope_parameters is {parameters!r}, expected an object")
    rope_type = parameters.get("rope_type", parameters.get("type", "default"))
    if rope_type != "default":
        raise config.error(f"rope scaling of type {rope_type!r} is not supported; only unscaled positions are")
    nested = ConfigFields(parameters, config.source)
    is_llama = architecture is Architecture.LLAMA
    theta_name, part_name = ("rope_theta", "partial_rotary_factor") if is_llama else ("rotary_emb_base", "rotary_pct")
    theta = nested.number("rope_theta", config.number(theta_name, 10000.0))
    part = nested.number("partial_rotary_factor", config.number(part_name, 1.0 if is_llama else 0.25))
    rotary_dim = int(head_dim * part)
    if part > 1 or rotary_dim < 2 or rotary_dim % 2:
        raise config.error(f"{part_name} {part} of a head of {head_dim} is not a positive even number of dimensions")
    return theta, rotary_dim
