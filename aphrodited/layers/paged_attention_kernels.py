"""Rotation, storing and paged attention as machine code, compiled by numba on first use and kept on disk.

Each query row is computed by itself, key after key, block after block: its bits depend on nothing but its own query,
its visible keys and values and the block size, so they are the same alone, batched, chunked, preempted and resumed.
Sums over keys keep their written order (only multiply-add contraction is allowed); a single dot product over the D
dimensions of a head may be reordered, but always in the same way.

Threads are numba's. Their number is a parameter, and work items are dealt to them in turn, so that long and short
sequences spread. Pointers are not checked: block ids and slots come from the block manager.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from aphrodited.layers.prefetch import prefetch

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Kernel = Callable[..., Any]

_FLOATS_PER_CACHE_LINE = 16
_IN_ORDER = {"contract"}
REORDERED = {"contract", "reassoc", "nsz", "arcp"}


def use_threads(wanted: int) -> int:
    """Let kernels called by this thread use `wanted` threads, or as many as numba has; returns how many."""
    num_threads = min(wanted, int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    numba.set_num_threads(num_threads)
    return num_threads


def compile_kernel(function: Kernel, fastmath: set[str], *, parallel: bool = False) -> Kernel:
    """The function as machine code; without a cache where numba finds no directory that it may write."""
    try:
        kernel: Kernel = numba.njit(function, parallel=parallel, fastmath=fastmath, cache=True)
    except RuntimeError:
        kernel = numba.njit(function, parallel=parallel, fastmath=fastmath)
    return kernel


def _score_keys(query: Floats, keys: Floats, num_keys: int, scale: float, scores: Floats) -> np.float32:
    """Fill scores[:num_keys] with scale x query · key; returns the largest."""
    largest = np.float32(-np.inf)
    for t in range(num_keys):
        score = np.float32(0.0)
        for d in range(query.shape[0]):
            score += query[d] * keys[t, d]
        score *= scale
        scores[t] = score
        largest = max(largest, score)
    return largest


def _add_values(weights: Floats, values: Floats, num_keys: int, total: Floats) -> None:
    """total += sum of weights[t] x values[t], four keys a pass, in order."""
    size = total.shape[0]
    num_fours = num_keys - num_keys % 4
    for t in range(0, num_fours, 4):
        w0, w1, w2, w3 = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
        for d in range(size):
            x = total[d]
            x += w0 * values[t, d]
            x += w1 * values[t + 1, d]
            x += w2 * values[t + 2, d]
            x += w3 * values[t + 3, d]
            total[d] = x
    for t in range(num_fours, num_keys):
        w0 = weights[t]
        for d in range(size):
            total[d] += w0 * values[t, d]


score_keys = compile_kernel(_score_keys, REORDERED)
add_values = compile_kernel(_add_values, _IN_ORDER)


def _attend_block(
    query: Floats, keys: Floats, values: Floats, num_keys: int, scale: float, scores: Floats, state: Floats, total: Floats
) -> None:
    """Take one block of keys into a query's running softmax: state is (largest score, sum of weights)."""
    largest = score_keys(query, keys, num_keys, scale, scores)
    if largest > state[0]:
        shrink = np.float32(math.exp(state[0] - largest))
        state[0] = largest
        state[1] *= shrink
        for d in range(total.shape[0]):
            total[d] *= shrink
    else:
        largest = state[0]
    weight_sum = state[1]
    for t in range(num_keys):
        weight = np.float32(math.exp(scores[t] - largest))
        scores[t] = weight
        weight_sum += weight
    state[1] = weight_sum
    add_values(scores, values, num_keys, total)


def _prefetch_block(keys: Floats, values: Floats, block_id: int, kv_head: int) -> None:
    """Ask for one head of a block of the caches keys and values, [N, K, B, D]."""
    size = keys.shape[2] * keys.shape[3]
    start = (block_id * keys.shape[1] + kv_head) * size
    for offset in range(0, size, _FLOATS_PER_CACHE_LINE):
        prefetch(keys, start + offset)
        prefetch(values, start + offset)


attend_block = compile_kernel(_attend_block, _IN_ORDER)
prefetch_block = compile_kernel(_prefetch_block, _IN_ORDER)


def _attend(
    qkv: Floats,  # [T, (H + 2K) D], rotated
    key_cache: Floats,  # [N, K, B, D]
    value_cache: Floats,  # [N, K, B, D]
    block_tables: Ints,  # [S, M]
    tiles: Ints,  # [number of tiles, 3]: sequence, first row, number of rows
    positions: Longs,  # [T]
    window: int,
    scale: float,
    num_threads: int,
    max_tile_rows: int,
    output: Floats,  # [T, H D]
) -> None:
    """Causal attention of every query row over the last `window` keys of its sequence, its own included."""
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    group = output.shape[1] // head_dim // num_kv_heads
    for thread in numba.prange(num_threads):
        scores = np.empty(block_size, np.float32)
        states = np.empty((max_tile_rows * group, 2), np.float32)
        totals = np.empty((max_tile_rows * group, head_dim), np.float32)
        for item in range(thread, tiles.shape[0] * num_kv_heads, num_threads):
            tile, kv_head = item // num_kv_heads, item % num_kv_heads
            sequence, first_row, num_rows = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2]
            states[:, 0] = -np.inf
            states[:, 1] = 0.0
            totals[:] = 0.0
            num_keys = positions[first_row + num_rows - 1] + 1
            num_blocks = (num_keys + block_size - 1) // block_size
            for block in range(max(0, positions[first_row] + 1 - window) // block_size, num_blocks):
                block_id = block_tables[sequence, block]
                if block + 1 < num_blocks:
                    prefetch_block(key_cache, value_cache, block_tables[sequence, block + 1], kv_head)
                for row in range(num_rows):
                    end = min(block_size, positions[first_row + row] + 1 - block * block_size)  # of the visible keys
                    begin = max(0, positions[first_row + row] + 1 - window - block * block_size)
                    for lane in range(group if begin < end else 0):
                        start = (kv_head * group + lane) * head_dim
                        attend_block(
                            qkv[first_row + row, start : start + head_dim],
                            key_cache[block_id, kv_head, begin:],
                            value_cache[block_id, kv_head, begin:],
                            end - begin,
                            scale,
                            scores,
                            states[row * group + lane],
                            totals[row * group + lane],
                        )
            for row in range(num_rows):
                for lane in range(group):
                    start = (kv_head * group + lane) * head_dim
                    inverse = np.float32(1.0) / states[row * group + lane, 1]
                    for d in range(head_dim):
                        output[first_row + row, start + d] = totals[row * group + lane, d] * inverse


def _rotate_and_store(
    qkv: Floats,  # [T, (H + 2K) D], rotated in place
    rotary: Floats,  # [P, R]: cosines, then sines
    positions: Longs,  # [T]
    slot_mapping: Longs,  # [T]
    key_cache: Floats,  # [N, K, B, D]
    value_cache: Floats,  # [N, K, B, D]
    num_threads: int,
) -> None:
    """Rotate queries and keys by their positions, and copy keys and values into their slots."""
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    num_rotated = qkv.shape[1] // head_dim - num_kv_heads  # every query and key head
    key_start = (num_rotated - num_kv_heads) * head_dim
    value_start = num_rotated * head_dim
    half = rotary.shape[1] // 2
    for thread in numba.prange(num_threads):
        for row in range(thread, positions.shape[0], num_threads):
            cosines, sines = rotary[positions[row], :half], rotary[positions[row], half:]
            for head in range(num_rotated):
                start = head * head_dim
                for i in range(half):
                    x, y = qkv[row, start + i], qkv[row, start + half + i]
                    qkv[row, start + i] = x * cosines[i] - y * sines[i]
                    qkv[row, start + half + i] = y * cosines[i] + x * sines[i]
            block_id, offset = slot_mapping[row] // block_size, slot_mapping[row] % block_size
            for kv_head in range(num_kv_heads):
                for d in range(head_dim):
                    key_cache[block_id, kv_head, offset, d] = qkv[row, key_start + kv_head * head_dim + d]
                    value_cache[block_id, kv_head, offset, d] = qkv[row, value_start + kv_head * head_dim + d]


attend = compile_kernel(_attend, _IN_ORDER, parallel=True)
rotate_and_store = compile_kernel(_rotate_and_store, _IN_ORDER, parallel=True)
