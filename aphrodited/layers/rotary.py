"""The angles of rotary position embedding, computed once for every position a model can have.

Source: https://arxiv.org/abs/2104.09864, in the half-split layout of Hugging Face checkpoints: dimension i of the
rotary part pairs with dimension i + R / 2. The rotation itself belongs to `paged_attention`.

A model that was stretched beyond the length it was first trained for says how, as a RopeScaling:

    LinearScaling       every frequency divided by one factor
    FactorScaling       each frequency divided by its own factor
    Llama3Scaling       long waves divided, short ones kept, a ramp between them
    YarnScaling         the same by numbers of turns, and attention sharpened; https://arxiv.org/abs/2309.00071
    DynamicScaling      a base that grows with the position, beyond the trained length only

All are functions of the position alone, so a key may stay in the cache whatever follows it. That is why a token under
DynamicScaling has the angle of a sequence that ends with it: what transformers computes when it generates with a cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearScaling:
    factor: float


@dataclass(frozen=True, slots=True)
class FactorScaling:
    factors: tuple[float, ...]  # R / 2, the fastest frequency first


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Source: https://github.com/meta-llama/llama-models/blob/main/models/llama3/reference_impl/model.py."""

    factor: float
    low_freq_factor: float  # turns within original_length up to which a wave counts as long
    high_freq_factor: float  # turns within original_length from which it counts as short
    original_length: int  # tokens


@dataclass(frozen=True, slots=True)
class YarnScaling:
    factor: float
    original_length: int  # tokens
    attention_factor: float  # of cosines and sines
    beta_fast: float = 32.0  # turns within original_length from which a wave keeps its frequency
    beta_slow: float = 1.0  # turns up to which its frequency is divided by factor
    truncate: bool = True  # the ramp begins and ends at whole dimensions


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    factor: float
    original_length: int  # tokens


RopeScaling = LinearScaling | FactorScaling | Llama3Scaling | YarnScaling | DynamicScaling


def rotary_table(num_positions: int, rotary_dim: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """[P, R] float32: at each position R / 2 cosines, then R / 2 sines."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    positions = torch.arange(num_positions, dtype=torch.float32).unsqueeze(1)  # [P, 1]
    if isinstance(scaling, DynamicScaling):
        angles = positions * _growing_frequencies(scaling, theta, exponents, num_positions)
    else:
        angles = positions * _scaled(1.0 / theta**exponents, theta, scaling)
    table = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return table * scaling.attention_factor if isinstance(scaling, YarnScaling) else table


def yarn_attention_factor(factor: float, mscale: float = 1.0) -> float:
    """What YaRN multiplies cosines and sines with, so that attention over more tokens stays as sharp."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _scaled(
    frequencies: Tensor, theta: float, scaling: LinearScaling | FactorScaling | Llama3Scaling | YarnScaling | None
) -> Tensor:
    """Radians per position of each pair of dimensions, [R / 2], the fastest first."""
    match scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case FactorScaling(factors):
            return frequencies / torch.tensor(factors)
        case Llama3Scaling():
            turns = scaling.original_length * frequencies / (2 * math.pi)
            kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
            return _mixed(frequencies, scaling.factor, kept)
        case YarnScaling():
            return _mixed(frequencies, scaling.factor, 1.0 - _yarn_ramp(scaling, theta, len(frequencies)))


def _mixed(frequencies: Tensor, factor: float, kept: Tensor) -> Tensor:
    """A share `kept` (cut to 0 … 1) of each frequency as it is, the rest of it divided by factor."""
    kept = kept.clamp(0.0, 1.0)
    return frequencies / factor * (1.0 - kept) + frequencies * kept


def _yarn_ramp(scaling: YarnScaling, theta: float, num_pairs: int) -> Tensor:
    """0 for pairs that turn beta_fast times and more, 1 for those that turn beta_slow times and less: [R / 2]."""

    def pair_of(num_turns: float) -> float:
        return num_pairs * math.log(scaling.original_length / (num_turns * 2 * math.pi)) / math.log(theta)

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    width = last - first if last != first else 0.001  # as in the paper's code: a step instead of a division by zero
    return ((torch.arange(num_pairs) - first) / width).clamp(0.0, 1.0)


def _growing_frequencies(scaling: DynamicScaling, theta: float, exponents: Tensor, num_positions: int) -> Tensor:
    """[P, R / 2]: at each position, those of a sequence that ends there."""
    lengths = torch.arange(1, num_positions + 1, dtype=torch.float64).clamp(min=scaling.original_length)
    rotary_dim = 2 * len(exponents)
    stretch = scaling.factor * lengths / scaling.original_length - (scaling.factor - 1)
    bases = theta * stretch ** (rotary_dim / (rotary_dim - 2))
    return 1.0 / bases.float().unsqueeze(1) ** exponents
