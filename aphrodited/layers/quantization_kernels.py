"""A row to integers as machine code: spreads outliers, finds the range, rounds.

A few channels of a language model are a hundred times as large as the others, and a scale that holds them leaves the
others with a few of the 255 values. So rows are first multiplied with an orthogonal matrix, signs without a pattern and
then a Hadamard transform over groups of channels, which gives each outlier to its whole group; the weight, multiplied
with the same matrix, undoes it within the product. Source: https://arxiv.org/abs/2404.00456 (QuaRot).

Each row is computed by itself, always in the same order. Compiled by numba on first use and kept on disk.
"""

from __future__ import annotations

import numpy as np

from aphrodited.layers.hadamard import GROUP, transform
from aphrodited.layers.kernels import Floats, compile_kernel

_SMALLEST = np.float32(1e-30)  # a row of zeros stays zeros
_MAGNITUDE = np.int32(0x7FFFFFFF)  # every bit of a float32 but its sign


def group_size(num_channels: int) -> int:
    """Channels that one Hadamard transform mixes: a power of two that divides num_channels."""
    return min(GROUP, num_channels & -num_channels)


def channel_signs(num_channels: int) -> Floats:
    """1 or -1 for each channel, always the same."""
    mixed = np.arange(num_channels, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.where(mixed >> np.uint64(63), np.float32(-1), np.float32(1))


def _mix(row: Floats, signs: Floats, group: int, values: Floats) -> None:
    """Fill values with the transform of the signed row, group by group of neighbouring channels."""
    num_channels = row.shape[0]
    if group == GROUP:
        for start in range(0, num_channels, GROUP):
            transform(row, signs, start, values)
        return
    for k in range(num_channels):
        values[k] = row[k] * signs[k]
    distance = 1
    while distance < group:
        for k in range(num_channels):
            if not k & distance:
                a, b = values[k], values[k + distance]
                values[k], values[k + distance] = a + b, a - b
        distance *= 2


def _largest_magnitude(row: Floats) -> np.float32:
    """As bits without their sign, floats are ordered as integers are, NaN above all."""
    bits = row.view(np.int32)
    largest_bits = np.int32(0)
    for k in range(bits.shape[0]):
        magnitude = np.int32(bits[k] & _MAGNITUDE)
        if magnitude > largest_bits:
            largest_bits = magnitude
    return np.int32(largest_bits).view(np.float32)


mix = compile_kernel(_mix, set())
largest_magnitude = compile_kernel(_largest_magnitude, set())


def _quantize_row(row: Floats, signs: Floats, group: int, limit: float, values: Floats) -> np.float32:
    """Fill values with the transformed row as integers from -limit to limit; returns what one step of them is worth."""
    mix(row, signs, group, values)
    largest: np.float32 = largest_magnitude(values)
    per_step = np.float32(limit) / max(largest, _SMALLEST)
    for k in range(row.shape[0]):
        values[k] = np.rint(values[k] * per_step)
    return largest / np.float32(limit)


quantize_row = compile_kernel(_quantize_row, set())
