"""A float32 weight in panels that a product reads from end to end, as wide as this CPU's registers want them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.layers.huge_pages import HugePageArena

NUM_VECTORS = 2  # registers that a panel is wide


@cache
def num_lanes() -> int:
    """Numbers in a register that this CPU multiplies and adds at once; 0 if there are no kernels for it."""
    if find_spec("numba") is None:
        return 0
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    return 8 if features.get("avx2") and features.get("fma") else 0


@dataclass(frozen=True, slots=True)
class FloatWeight:
    """A weight [N, K] with bias, in P panels of W outputs each, zeros beyond N."""

    panels: NDArray[np.float32]  # [P, K, W]
    bias: NDArray[np.float32]  # [P, W]


def empty_weight(num_outputs: int, num_channels: int, bias: Tensor | None, arena: HugePageArena) -> FloatWeight:
    """A weight [N, K] for pack_panels to fill, with the bias [N]."""
    width = num_lanes() * NUM_VECTORS
    num_panels = -(-num_outputs // width)
    padded_bias = np.zeros((num_panels, width), np.float32)
    if bias is not None:
        padded_bias.reshape(-1)[:num_outputs] = bias.numpy()
    return FloatWeight(arena.empty((num_panels, num_channels, width), np.dtype(np.float32)), padded_bias)


def pack_panels(weight: Tensor, panels: NDArray[np.float32]) -> None:
    """Fill the panels with the weight [N, K]. Does not hold the interpreter's lock."""
    num_outputs, num_channels = weight.shape
    width = panels.shape[2]
    num_whole, num_left = divmod(num_outputs, width)
    target = torch.from_numpy(panels)
    target[:num_whole] = weight[: num_whole * width].reshape(num_whole, width, num_channels).transpose(1, 2)
    if num_left:
        target[num_whole, :, :num_left] = weight[num_whole * width :].T
        target[num_whole, :, num_left:] = 0.0
