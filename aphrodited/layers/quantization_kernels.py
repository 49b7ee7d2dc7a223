"""Rows to int8 as machine code: spreads outliers, finds each row's range, rounds. And the product of a single row.

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
Bytes = NDArray[np.int8]

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


def _quantize_row(row: Floats, sign: Floats, group: int, limit: float, values: Floats) -> np.float32:
    """Fill values with the transformed row as integers from -limit to limit; returns what one step of them is worth.

    Channels of one group lie num_channels / group apart, so that all sums are of vectors.
    """
    num_channels = row.shape[0]
    for k in range(num_channels):
        values[k] = row[k] * sign[k]
    apart = num_channels // group
    while 4 * apart <= num_channels:
        for start in range(0, num_channels, 4 * apart):
            second, third, fourth, end = start + apart, start + 2 * apart, start + 3 * apart, start + 4 * apart
            mix_fours(values[start:second], values[second:third], values[third:fourth], values[fourth:end])
        apart *= 4
    if apart < num_channels:
        for start in range(0, num_channels, 2 * apart):
            mix_pairs(values[start : start + apart], values[start + apart : start + 2 * apart])
    largest: np.float32 = largest_magnitude(values)
    per_step = np.float32(limit) / np.maximum(largest, _SMALLEST)
    for k in range(num_channels):
        values[k] = np.rint(values[k] * per_step)
    return largest / np.float32(limit)


quantize_row = compile_kernel(_quantize_row, set())


def _quantize(rows: Floats, sign: Floats, group: int, limit: float, values: Floats, steps: Floats) -> None:
    """quantize_row for each of the rows [R, K] into values [R, K], and their steps into [R, 1]."""
    for row in range(rows.shape[0]):
        steps[row, 0] = quantize_row(rows[row], sign, group, limit, values[row])


def _quantize_parallel(
    rows: Floats, sign: Floats, group: int, limit: float, values: Floats, steps: Floats, num_threads: int
) -> None:
    """The same, by several threads."""
    for thread in numba.prange(num_threads):
        for row in range(thread, rows.shape[0], num_threads):
            steps[row, 0] = quantize_row(rows[row], sign, group, limit, values[row])


quantize = compile_kernel(_quantize, set())
quantize_parallel = compile_kernel(_quantize_parallel, set(), parallel=True)


def _dot(first: Bytes, second: Bytes) -> np.int32:
    """Written so that 32 products at a time are added up in 32 bits."""
    total = np.int32(0)
    for k in range(first.shape[0]):
        total = np.int32(total + np.int32(np.int32(first[k]) * np.int32(second[k])))
    return total


dot = compile_kernel(_dot, set())


def _multiply_row(
    row: Floats,  # [K]
    sign: Floats,
    group: int,
    limit: float,
    weight: Bytes,  # [out, K]
    weight_steps: Floats,  # [out]
    num_threads: int,
    result: Floats,  # [out]
) -> None:
    """The quantised row times the weight: what fbgemm computes of a single row, in half the time."""
    num_outputs, num_channels = weight.shape
    floats, values = np.empty(num_channels, np.float32), np.empty(num_channels, np.int8)
    step = quantize_row(row, sign, group, limit, floats)
    for k in range(num_channels):
        values[k] = np.int8(floats[k])
    for thread in numba.prange(num_threads):
        for n in range(num_outputs * thread // num_threads, num_outputs * (thread + 1) // num_threads):
            result[n] = np.float32(dot(values, weight[n])) * weight_steps[n] * step


multiply_row = compile_kernel(_multiply_row, set())
multiply_row_parallel = compile_kernel(_multiply_row, set(), parallel=True)
