"""Prepares rows for int8 as machine code: spreads outliers, finds each row's range, stretches it to [-1, 1].

A few channels of a language model are a hundred times as large as the others, and a scale that holds them leaves the
others with a few of the 255 values. So rows are first multiplied with an orthogonal matrix, signs without a pattern and
then a Hadamard transform over groups of channels, which gives each outlier to its whole group; the weight, multiplied
with the same matrix, undoes it within the product. Source: https://arxiv.org/abs/2404.00456 (QuaRot).

Each row is computed by itself, always in the same order. Compiled by numba on first use and kept on disk.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from aphrodited.layers.paged_attention_kernels import compile_kernel

Floats = NDArray[np.float32]

MAX_GROUP = 64
_SMALLEST = np.float32(1e-30)  # a row of zeros stays zeros
_MAGNITUDE = np.int32(0x7FFFFFFF)  # every bit of a float32 but its sign


def group_size(num_channels: int) -> int:
    """Channels that one Hadamard transform mixes: a power of two that divides num_channels."""
    return min(MAX_GROUP, num_channels & -num_channels)


def signs(num_channels: int) -> Floats:
    """1 or -1 for each channel, always the same."""
    mixed = np.arange(num_channels, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.where(mixed >> np.uint64(63), np.float32(-1), np.float32(1))


def _mix_pairs(first: Floats, second: Floats) -> None:
    """Hadamard transform of two channels, for each pair of them, in place."""
    for k in range(first.shape[0]):
        a, b = first[k], second[k]
        first[k], second[k] = a + b, a - b


def _mix_fours(first: Floats, second: Floats, third: Floats, fourth: Floats) -> None:
    """Hadamard transform of four channels: two steps in one pass."""
    for k in range(first.shape[0]):
        a, b, c, d = first[k], second[k], third[k], fourth[k]
        e, f, g, h = a + b, a - b, c + d, c - d
        first[k], second[k], third[k], fourth[k] = e + g, f + h, e - g, f - h


def _largest_magnitude(row: Floats) -> np.float32:
    """As bits without their sign, floats are ordered as integers are, NaN above all."""
    bits = row.view(np.int32)
    largest_bits = np.int32(0)
    for k in range(bits.shape[0]):
        magnitude = np.int32(bits[k] & _MAGNITUDE)
        if magnitude > largest_bits:
            largest_bits = magnitude
    return np.int32(largest_bits).view(np.float32)


mix_pairs = compile_kernel(_mix_pairs, set())
mix_fours = compile_kernel(_mix_fours, set())
largest_magnitude = compile_kernel(_largest_magnitude, set())


def _stretch_row(row: Floats, sign: Floats, group: int, result: Floats) -> np.float32:
    """Fill result with the transformed row, stretched so that its largest magnitude is 1; returns what that was.

    Channels of one group lie num_channels / group apart, so that all sums are of vectors.
    """
    num_channels = row.shape[0]
    for k in range(num_channels):
        result[k] = row[k] * sign[k]
    apart = num_channels // group
    while 4 * apart <= num_channels:
        for start in range(0, num_channels, 4 * apart):
            second, third, fourth, end = start + apart, start + 2 * apart, start + 3 * apart, start + 4 * apart
            mix_fours(result[start:second], result[second:third], result[third:fourth], result[fourth:end])
        apart *= 4
    if apart < num_channels:
        for start in range(0, num_channels, 2 * apart):
            mix_pairs(result[start : start + apart], result[start + apart : start + 2 * apart])
    largest: np.float32 = largest_magnitude(result)
    inverse = np.float32(1.0) / np.maximum(largest, _SMALLEST)
    for k in range(num_channels):
        result[k] *= inverse
    return largest


stretch_row = compile_kernel(_stretch_row, set())


def _stretch(rows: Floats, sign: Floats, group: int, result: Floats, largest: Floats) -> None:
    """stretch_row for each of the rows [R, K] into result [R, K]; what was largest into [R, 1]."""
    for row in range(rows.shape[0]):
        largest[row, 0] = stretch_row(rows[row], sign, group, result[row])


def _stretch_parallel(
    rows: Floats, sign: Floats, group: int, result: Floats, largest: Floats, num_threads: int
) -> None:
    """The same, by several threads."""
    for thread in numba.prange(num_threads):
        for row in range(thread, rows.shape[0], num_threads):
            largest[row, 0] = stretch_row(rows[row], sign, group, result[row])


stretch = compile_kernel(_stretch, set())
stretch_parallel = compile_kernel(_stretch_parallel, set(), parallel=True)
