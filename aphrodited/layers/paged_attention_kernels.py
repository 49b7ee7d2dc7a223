"""Rotation, storing and paged attention as machine code, compiled by numba on first use and kept on disk.

Threads are numba's. Their number is a parameter, and work items are dealt to them in turn, so that long and short
sequences spread; no sum is shared between threads. Pointers are not checked: block ids and slots come from the block manager.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from aphrodited.layers.attention_tiles import Tile, attend_tile, load_rows, store_rows
from aphrodited.layers.half_floats import Cache, narrow
from aphrodited.layers.kernels import IN_ORDER, REORDERED, Floats, Ints, Longs, compile_kernel, use_threads
from aphrodited.layers.vector_tiles import KEY_TILE, LANES, padded, row_width

__all__ = ["REORDERED", "attend", "compile_kernel", "rotate_and_store", "use_threads"]


def _attend(
    qkv: Floats,  # [T, (H + 2K) D], rotated
    key_cache: Cache,  # [N, K, D, B]
    value_cache: Cache,  # [N, K, B, D]
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
    num_kv_heads, head_dim, block_size = key_cache.shape[1:]
    group = output.shape[1] // head_dim // num_kv_heads
    head_size = head_dim * block_size  # of one block
    num_copies = 0 if head_dim % LANES == 0 and block_size % LANES == 0 else KEY_TILE
    scale_to_powers_of_two = np.float32(scale * math.log2(math.e))
    for thread in numba.prange(num_threads):
        rows = np.empty((max_tile_rows * group, row_width(head_dim)), np.float32)
        key_copies = np.zeros((head_dim, num_copies), key_cache.dtype)
        value_copies = np.zeros((num_copies, padded(head_dim)), value_cache.dtype)
        for item in range(thread, tiles.shape[0] * num_kv_heads, num_threads):
            i, kv_head = item // num_kv_heads, item % num_kv_heads
            sequence, first_row, num_rows = tiles[i, 0], tiles[i, 1], tiles[i, 2]
            tile = Tile(
                key_cache.ctypes.data + key_cache.itemsize * kv_head * head_size,
                value_cache.ctypes.data + key_cache.itemsize * kv_head * head_size,
                key_cache.itemsize,
                num_kv_heads * head_size,
                block_size,
                head_dim,
                head_dim,
                group,
                num_rows * group,
                positions[first_row],
                window,
            )
            load_rows(rows, tile, qkv, first_row, kv_head * group, scale_to_powers_of_two)
            attend_tile(
                rows, tile, kv_head, block_tables[sequence], key_cache, value_cache, key_copies, value_copies
            )
            store_rows(rows, tile, first_row, kv_head * group, output)


def _rotate(head: Floats, angles: Floats) -> None:
    """Rotate a head's leading numbers in place. angles: [R], cosines, then sines."""
    half = angles.shape[0] // 2
    for i in range(half):
        x, y = head[i], head[half + i]
        head[i] = x * angles[i] - y * angles[half + i]
        head[half + i] = y * angles[i] + x * angles[half + i]


rotate = compile_kernel(_rotate, IN_ORDER)


def _rotate_and_store_head(
    row: Floats,  # [(H + 2K) D], rotated in place
    kv_head: int,
    group: int,  # query heads of a key head
    angles: Floats,  # [R]
    slot: int,
    key_cache: Cache,
    value_cache: Cache,
) -> None:
    """The same for one key head of one row, and the query heads that share it."""
    num_kv_heads, head_dim = key_cache.shape[1:3]
    num_heads = group * num_kv_heads
    for head in range(kv_head * group, (kv_head + 1) * group):
        rotate(row[head * head_dim : (head + 1) * head_dim], angles)
    key_start, value_start = (num_heads + kv_head) * head_dim, (num_heads + num_kv_heads + kv_head) * head_dim
    key, value = row[key_start : key_start + head_dim], row[value_start : value_start + head_dim]
    rotate(key, angles)
    store_head(key, value, kv_head, slot, key_cache, value_cache)


def _store_head(key: Floats, value: Floats, kv_head: int, slot: int, key_cache: Cache, value_cache: Cache) -> None:
    """Copy a key and a value [D] into their slot."""
    head_dim, block_size = key_cache.shape[2:]
    block_id, offset = slot // block_size, slot % block_size
    for d in range(head_dim):
        key_cache[block_id, kv_head, d, offset] = narrow(key[d], key_cache)
        value_cache[block_id, kv_head, offset, d] = narrow(value[d], value_cache)


store_head = compile_kernel(_store_head, set())
rotate_and_store_head = compile_kernel(_rotate_and_store_head, set())


def _rotate_and_store(
    qkv: Floats,  # [T, (H + 2K) D], rotated in place
    rotary: Floats,  # [P, R]: cosines, then sines
    positions: Longs,  # [T]
    slot_mapping: Longs,  # [T]
    key_cache: Cache,  # [N, K, D, B]
    value_cache: Cache,  # [N, K, B, D]
    num_threads: int,
) -> None:
    """Rotate queries and keys by their positions, and copy keys and values into their slots."""
    num_kv_heads, head_dim = key_cache.shape[1:3]
    group = qkv.shape[1] // head_dim // num_kv_heads - 2
    num_rows = positions.shape[0]
    for thread in numba.prange(num_threads):
        for row in range(num_rows * thread // num_threads, num_rows * (thread + 1) // num_threads):
            angles, slot = rotary[positions[row]], slot_mapping[row]
            for kv_head in range(num_kv_heads):
                rotate_and_store_head(qkv[row], kv_head, group, angles, slot, key_cache, value_cache)


attend = compile_kernel(_attend, set(), parallel=True)
rotate_and_store = compile_kernel(_rotate_and_store, set(), parallel=True)
