"""Reads how positions rotate out of a Hugging Face config: base, dimensions, scaling, and how far that reaches.

Newer configs keep all of it in `rope_parameters`; older ones the scaling in `rope_scaling` and the rest at the top.
Source of names and defaults: transformers' modeling_rope_utils.py (5.x).
"""

from __future__ import annotations

from typing import NamedTuple

from aphrodited.layers.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
    yarn_attention_factor,
)
from aphrodited.models.config_fields import ConfigFields

SUPPORTED_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")
MAX_POSITIONS = 2**24  # float32, in which angles are computed, holds every integer up to here
_DEFAULT_THETA = 10000.0
_DEFAULT_NEOX_PART = 0.25  # of a head that rotates


class Rope(NamedTuple):
    """max_length: tokens that the model was trained for, or was stretched to."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling | None
    max_length: int


def read_rope(config: ConfigFields, head_dim: int, *, is_neox: bool) -> Rope:
    """Raises ModelLoadError for a scaling that is not supported or lacks a number."""
    rope = _rope_fields(config)
    theta_name, part_name = ("rotary_emb_base", "rotary_pct") if is_neox else ("rope_theta", "partial_rotary_factor")
    theta = rope.number("rope_theta", config.number(theta_name, _DEFAULT_THETA))
    part = rope.number("partial_rotary_factor", config.number(part_name, _DEFAULT_NEOX_PART if is_neox else 1.0))
    rotary_dim = int(head_dim * part)
    if part > 1 or rotary_dim < 2 or rotary_dim % 2:
        raise config.error(f"{part_name} {part} of a head of {head_dim} is not a positive even number of dimensions")
    if part < 1 and not is_neox:
        raise config.error(f"{part_name} is {part}; partial rotation is not supported in this family")
    length = config.integer("max_position_embeddings")
    original_length = config.integer("original_max_position_embeddings", rope.integer("original_max_position_embeddings", length))
    scaling = _scaling(rope, length, original_length)
    if isinstance(scaling, DynamicScaling) and rotary_dim == 2:
        raise rope.error("dynamic scaling needs more than 2 rotating dimensions")
    return Rope(theta, rotary_dim, scaling, stretched_length(config, scaling, length))


def stretched_length(config: ConfigFields, scaling: RopeScaling | None, length: int) -> int:
    """Tokens that a scaling reaches, for a config that says `length`: some give the length before, some the one after.

    Raises ModelLoadError beyond MAX_POSITIONS.
    """
    match scaling:
        case LinearScaling(factor):
            length = max(length, int(length * factor))
        case DynamicScaling(factor, original_length) | YarnScaling(factor, original_length):
            length = max(length, int(original_length * factor))
    if length > MAX_POSITIONS:
        raise config.error(f"{length} positions are not supported; at most {MAX_POSITIONS} are")
    return length


def _rope_fields(config: ConfigFields) -> ConfigFields:
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    fields = config.get(name) or {}
    if not isinstance(fields, dict):
        raise config.error(f"{name} is {fields!r}, expected an object")
    if any(isinstance(value, dict) for value in fields.values()):
        raise config.error(f"{name} differs between kinds of layers ({', '.join(fields)}), which is not supported")
    return ConfigFields(fields, f"{config.source}: {name}")


def _scaling(rope: ConfigFields, length: int, original_length: int) -> RopeScaling | None:
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    match rope_type:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "dynamic":
            return DynamicScaling(rope.number("factor"), length)
        case "llama3":
            low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
            if low >= high:
                raise rope.error(f"low_freq_factor {low} is not below high_freq_factor {high}")
            return Llama3Scaling(rope.number("factor"), low, high, original_length)
        case "yarn":
            return _yarn(rope, rope.number("factor", length / original_length), original_length)
        case _:
            supported = ", ".join(SUPPORTED_ROPE_TYPES)
            raise rope.error(f"rope scaling of type {rope_type!r} is not supported; supported are {supported}")


def _yarn(rope: ConfigFields, factor: float, original_length: int) -> YarnScaling:
    attention_factor = yarn_attention_factor(factor)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        over_all = yarn_attention_factor(factor, rope.number("mscale_all_dim"))
        attention_factor = yarn_attention_factor(factor, rope.number("mscale")) / over_all
    return YarnScaling(
        factor,
        original_length,
        attention_factor=rope.number("attention_factor", attention_factor),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )
