"""Choosing tokens from logits, as machine code: a row comes from memory once, and nothing of its size is written.

First a row's largest value is found, then the sums of its weights e^((x - largest) / temperature) over chunks of CHUNK
columns. Inverting their cumulative sums finds a chunk, and within it a column. Whether that is in the nucleus (top_p) is
decided by the mass above it; if not, the next draw is among what lies above, as `sampling.draw` explains. Random numbers are
those of `sampling.randomness`, where their source is named.

Each row is computed by itself, always in the same order. Compiled by numba on first use and kept on disk.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from aphrodited.layers.kernel_math import exponential
from aphrodited.layers.kernels import REORDERED, Doubles, Floats, Longs, compile_kernel, run_shares

Words = NDArray[np.uint64]

CHUNK = 256
NOT_FINITE = -1  # a row with NaN or inf, or without any finite value

_MAGNITUDE = np.int32(0x7FFFFFFF)  # every bit of a float32 but its sign
_INFINITE = np.int32(0x7F800000)  # the magnitude of infinity; NaN has a larger one
_LOWEST_BITS = np.int32(-0x80000000)
_FAR = np.float32(-87.0)  # e to this power is as good as 0
_ZERO = np.float32(0.0)

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF, _ROUNDS = np.uint64(0xFFFFFFFF), np.uint64(32), 10


def _largest_value(row: Floats) -> np.float32:
    """NaN if there is any. Negative floats, all bits but the sign inverted, are ordered as integers, too."""
    bits = row.view(np.int32)
    largest, largest_magnitude = _LOWEST_BITS, np.int32(0)
    for j in range(bits.shape[0]):
        magnitude = np.int32(bits[j] & _MAGNITUDE)
        ordered = np.int32(bits[j] ^ np.int32(np.int32(bits[j] >> np.int32(31)) & _MAGNITUDE))
        if ordered > largest:
            largest = ordered
        if magnitude > largest_magnitude:
            largest_magnitude = magnitude
    if largest_magnitude > _INFINITE:
        return np.float32(np.nan)
    bits_of_largest = np.int32(largest ^ np.int32(np.int32(largest >> np.int32(31)) & _MAGNITUDE))
    return bits_of_largest.view(np.float32)


def _weight(value: np.float32, largest: np.float32, inverse: np.float32) -> np.float32:
    x = (value - largest) * inverse
    return exponential(x) if x > _FAR else _ZERO


largest_value = compile_kernel(_largest_value, set())
weight = compile_kernel(_weight, set())


def _sum_weights(
    values: Floats, floor: np.float32, min_weight: np.float32, largest: np.float32, inverse: np.float32
) -> np.float32:
    """Of the values above floor whose weight is at least min_weight."""
    total = np.float32(0.0)
    for j in range(values.shape[0]):
        w = weight(values[j], largest, inverse)
        total += w if values[j] > floor and w >= min_weight else _ZERO
    return total


sum_weights = compile_kernel(_sum_weights, REORDERED)


def _sum_chunks(
    row: Floats, floor: np.float32, min_weight: np.float32, largest: np.float32, inverse: np.float32, sums: Doubles
) -> float:
    """Fill sums with those of each chunk; returns their sum."""
    total = 0.0
    for chunk in range(sums.shape[0]):
        values = row[chunk * CHUNK : min((chunk + 1) * CHUNK, row.shape[0])]
        sums[chunk] = sum_weights(values, floor, min_weight, largest, inverse)
        total += sums[chunk]
    return total


def _invert(
    row: Floats,
    floor: np.float32,
    min_weight: np.float32,
    largest: np.float32,
    inverse: np.float32,
    sums: Doubles,
    target: float,
) -> int:
    """The first column up to which the weights exceed target, never one without weight."""
    chunk, before = -1, 0.0
    for i in range(sums.shape[0]):
        if sums[i] > 0.0:
            if chunk >= 0:
                before += sums[chunk]
            chunk = i
            if before + sums[i] > target:
                break
    column = -1
    for j in range(chunk * CHUNK, min((chunk + 1) * CHUNK, row.shape[0])):
        w = weight(row[j], largest, inverse)
        if row[j] > floor and w >= min_weight and w > _ZERO:
            column = j
            before += w
            if before > target:
                break
    return column


sum_chunks = compile_kernel(_sum_chunks, set())
invert = compile_kernel(_invert, set())


def _first_equal(row: Floats, value: np.float32) -> int:
    for j in range(row.shape[0]):
        if row[j] == value:
            return j
    return NOT_FINITE


first_equal = compile_kernel(_first_equal, set())


def _uniform(seed: np.uint64, position: np.uint64, number: np.uint64) -> float:
    """From 0 to below 1: `randomness.uniforms` for one seed and one position."""
    c0, c1, c2, c3 = position & _LOW, position >> _HALF, number, np.uint64(0)
    k0, k1 = seed & _LOW, seed >> _HALF
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _HALF) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _HALF) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.float64((c0 << np.uint64(20)) | (c1 >> np.uint64(12))) * 2.0**-52


uniform = compile_kernel(_uniform, set())


def _choose_row(
    row: Floats, temperature: float, top_p: float, min_p: float, seed: np.uint64, position: np.uint64, sums: Doubles
) -> int:
    """A column, or NOT_FINITE. temperature 0: the first of the largest."""
    largest = largest_value(row)
    if not np.isfinite(largest):
        return NOT_FINITE
    if temperature == 0.0:
        first: int = first_equal(row, largest)
        return first
    inverse, min_weight, floor = np.float32(1.0 / temperature), np.float32(0.0), np.float32(-np.inf)
    total = sum_chunks(row, floor, min_weight, largest, inverse, sums)
    allowed = total
    if min_p > 0.0:
        min_weight = np.float32(min(min_p, 1.0))
        allowed = sum_chunks(row, floor, min_weight, largest, inverse, sums)
    column = NOT_FINITE
    for number in range(row.shape[0]):  # each try leaves one candidate less at least
        target = uniform(seed, position, np.uint64(number)) * allowed
        column = invert(row, floor, min_weight, largest, inverse, sums, target)
        if top_p >= 1.0:
            break
        floor = np.float32(row[column])
        allowed = sum_chunks(row, floor, min_weight, largest, inverse, sums)
        if allowed < top_p * total:
            break
    return column


choose_row = compile_kernel(_choose_row, set())


def _choose_share(
    thread: int,
    num_threads: int,
    logits: Floats,  # [R, V]
    limits: Doubles,  # [R, 3]: temperature, top_p, min_p
    places: Words,  # [R, 2]: seed, position
    chosen: Longs,  # [R]
) -> None:
    """choose_row for a thread's share of the rows."""
    sums = np.empty((logits.shape[1] + CHUNK - 1) // CHUNK, np.float64)
    for row in range(thread, logits.shape[0], num_threads):
        chosen[row] = choose_row(
            logits[row], limits[row, 0], limits[row, 1], limits[row, 2], places[row, 0], places[row, 1], sums
        )


choose_share = compile_kernel(_choose_share, set())


def _choose_all(
    num_threads: int,
    logits: Floats,
    limits: Doubles,
    places: Words,
    chosen: Longs,
) -> None:
    for thread in numba.prange(num_threads):
        choose_share(thread, num_threads, logits, limits, places, chosen)


choose_all = compile_kernel(_choose_all, set(), parallel=True)


def choose(num_threads: int, *arguments: Any) -> None:
    """Choose for all rows. arguments: those of _choose_share from logits on."""
    run_shares(choose_share, choose_all, num_threads, *arguments)


def compile_kernels() -> None:
    """Run every kernel once, so that the first engine after an installation starts at once."""
    limits, places = np.ones((1, 3)), np.ones((1, 2), np.uint64)
    for num_threads in (1, 2):
        choose(num_threads, np.zeros((1, 2), np.float32), limits, places, np.empty(1, np.int64))
