"""Prepares rows for int8 as machine code: spreads outliers, finds each row's range, stretches it to [-1, 1].

A few channels of a language model are a hundred times as large as the others, and a scale that holds them leaves the
others with a few of the 255 values. So rows are first multiplied with an orthogonal matrix, random signs and then a
Hadamard transform over groups of channels, which gives each outlier to its whole group; the weight, multiplied with the
same matrix, undoes it within the product. Source: https://arxiv.org/abs/2404.00456 (QuaRot).

Each row is computed by itself, always in the same order. Compiled by numba on first use and kept on disk.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from aphrodited.layers.paged_attention_kernels import compile_kernel

Floats = NDArray[np.float32]

MAX_GROUP = 64


def group_size(num_channels: int) -> int:
    """Channels that one Hadamard transform mixes: a power of two that divides num_channels."""
    return min(MAX_GROUP, num_channels & -num_channels)


def signs(num_channels: int) -> Floats:
    """1 or -1 for each channel, without a pattern and always the same."""
    mixed = np.arange(num_channels, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.where(mixed >> np.uint64(63), np.float32(-1), np.float32(1))


def _stretch_row(row: Floats, sign: Floats, group: int, result: Floats) -> np.float32:
    """Fill result with the transformed row, stretched so that its largest magnitude is 1; returns what that was.

    Channels of one group lie num_channels / group apart, so that every sum is one of vectors.
    """
    num_channels = row.shape[0]
    for k in range(num_channels):
        result[k] = row[k] * sign[k]
    half = num_channels // group
    while half < num_channels:
        for start in range(0, num_channels, 2 * half):
            for k in range(start, start + half):
                x, y = result[k], result[k + half]
                result[k] = x + y
                result[k + half] = x - y
        half *= 2
    bits = result.view(np.int32)  # without the sign bit they are ordered as magnitudes are, NaN above all
    largest_bits = 0
    for k in range(num_channels):
        largest_bits = max(largest_bits, bits[k] & np.int32(0x7FFFFFFF))
    largest = np.int32(largest_bits).view(np.float32)
    inverse = np.float32(1.0) / max(largest, np.float32(1e-30))
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
