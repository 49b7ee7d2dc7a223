"""An int8 weight in the layout that products want: one scale for each output, in panels that are read from end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aphrodited.layers.huge_pages import HugePageArena

_LIMIT = 127  # largest magnitude; -128 is left out to stay symmetric


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight [N, K] with bias, in P panels, zeros beyond N outputs and K channels.

    Its channels were mixed by `signs` and `group` (see quantization_kernels), as a row's are to be. A row comes without signs: `starts`
    undo what was added to it for that.
    """

    panels: NDArray[np.int8]  # [P, C / DEPTH, PANEL x DEPTH]
    starts: NDArray[np.int32]  # [P, PANEL]
    scales: NDArray[np.float32]  # [P, PANEL]
    bias: NDArray[np.float32]  # [P, PANEL]
    signs: NDArray[np.float32]  # [K]
    group: int


def pack_weight(
    weight: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
    *,
    row_offset: int,
    num_threads: int,
    arena: HugePageArena,
) -> Int8Weight:
    """The weight [N, K], rounded, and the bias [N]. row_offset: what is added to the channels of rows."""
    from aphrodited.layers.int8_kernels import pack  # late, see quantized_linear
    from aphrodited.layers.int8_tiles import DEPTH, PANEL
    from aphrodited.layers.quantization_kernels import channel_signs, group_size

    num_outputs, num_channels = weight.shape
    num_panels = -(-num_outputs // PANEL)
    panels = np.zeros((num_panels, -(-num_channels // DEPTH), PANEL * DEPTH), np.int8)
    starts = np.zeros((num_panels, PANEL), np.int32)
    scales, padded_bias = np.zeros(starts.shape, np.float32), np.zeros(starts.shape, np.float32)
    if bias is not None:
        padded_bias.reshape(-1)[:num_outputs] = bias
    signs, group = channel_signs(num_channels), group_size(num_channels)
    pack(num_threads, weight, signs, group, _LIMIT, row_offset, panels, starts, scales)
    return Int8Weight(arena.copy(panels), starts, scales, padded_bias, signs, group)
