"""Attention of a step of few rows, for kernels: each row is the last one of its sequence.

There are few key heads, and threads would wait for the one that has one more. So each gets as many heads as all can have, and what
is left over they divide: its scores by positions first, and in a second operation its values by columns. Whatever is computed of a
vector are the functions of `attention_tiles`, over all positions in their order, so it has the same bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aphrodited.layers.addresses import cache_at, matrix_at
from aphrodited.layers.attention_tiles import (
    Tile,
    attend_tile,
    begin_rows,
    copy_keys,
    find_keys,
    find_values,
    load_rows,
    rows_beside,
    score_tile,
    store_rows,
    sum_tile,
    visible,
)
from aphrodited.layers.half_floats import Cache
from aphrodited.layers.kernels import Floats, Ints, Longs, compile_kernel
from aphrodited.layers.norm_kernels import normalize_row
from aphrodited.layers.paged_attention_kernels import rotate, store_head
from aphrodited.layers.shared_work import claim, finish
from aphrodited.layers.vector_tiles import KEY_TILE, LANES, SCORES


class Cut(NamedTuple):
    """A key head of a row, or one of the equal parts of it."""

    head: int  # row x key heads + key head
    part: int
    num_parts: int


def _cut(chunk: int, num_heads: int, num_threads: int, num_whole: int) -> Cut:
    """For each thread num_whole heads, then a part of each head that is left over for all."""
    thread, number = divmod(chunk, num_whole + num_heads % num_threads)
    if number < num_whole:
        return Cut(thread * num_whole + number, 0, 1)
    first = num_heads - num_heads % num_threads
    return Cut(first + number - num_whole, thread, num_threads)


def _normalize_and_rotate(op: Any, shape: Any, which: int, angles: Floats, head: Floats) -> None:
    """One of the query heads or of the key heads behind them, in place."""
    if op.qk_norm_weight:
        weights = matrix_at(op.qk_norm_weight, shape.num_heads + shape.num_kv_heads, shape.head_dim)
        normalize_row(head, weights[which], op.qk_norm_eps, head)
    rotate(head, angles)


def _make_tile(
    op: Any, shape: Any, caches: Longs, item_bytes: int, kv_head: int, position: int, first_column: int, num_columns: int
) -> Tile:
    """The queries of one key head, and some columns of its values."""
    head_size = shape.head_dim * shape.block_size
    group = shape.num_heads // shape.num_kv_heads
    return Tile(
        caches[op.layer, 0] + item_bytes * kv_head * head_size,
        caches[op.layer, 1] + item_bytes * (kv_head * head_size + first_column),
        item_bytes,
        shape.num_kv_heads * head_size,
        shape.block_size,
        shape.head_dim,
        num_columns,
        group,
        group,
        position,
        op.window,
    )


def _oldest_tile(tile: Tile) -> int:
    """The first key tile that the row sees something of."""
    return int(max(0, tile.position + 1 - tile.window) // KEY_TILE)


def _caches_of_layer(op: Any, shape: Any, caches: Longs, copies: Cache) -> tuple[Cache, Cache]:
    """Keys [N, K, D, B] and values [N, K, B, D], of the type that copies of them have."""
    num_blocks, num_heads, block_size, head_dim = shape.num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim
    return (
        cache_at(caches[op.layer, 0], num_blocks, num_heads, head_dim, block_size, copies.dtype),
        cache_at(caches[op.layer, 1], num_blocks, num_heads, block_size, head_dim, copies.dtype),
    )


def _store_new_key(op: Any, shape: Any, kv_head: int, qkv: Floats, angles: Floats, slot: int, keys: Cache, values: Cache) -> None:
    """A row's key and value of one head into the cache. qkv: [(H + 2K) D]"""
    head_dim, which = shape.head_dim, shape.num_heads + kv_head
    key = qkv[which * head_dim : (which + 1) * head_dim].copy()
    normalize_and_rotate(op, shape, which, angles, key)
    value_start = (which + shape.num_kv_heads) * head_dim
    store_head(key, qkv[value_start : value_start + head_dim], kv_head, slot, keys, values)


def _load_queries(op: Any, shape: Any, tile: Tile, kv_head: int, qkv: Floats, angles: Floats, rows: Floats) -> None:
    """Begin the tile's vectors with a row's queries."""
    head_dim, first = shape.head_dim, kv_head * tile.group
    queries = np.empty((1, tile.group * head_dim), np.float32)
    queries[0] = qkv[first * head_dim : (first + tile.group) * head_dim]
    for i in range(tile.group):
        normalize_and_rotate(op, shape, first + i, angles, queries[0, i * head_dim : (i + 1) * head_dim])
    load_rows(rows, tile, queries, 0, 0, np.float32(shape.scale))


cut = compile_kernel(_cut, set())
normalize_and_rotate = compile_kernel(_normalize_and_rotate, set())
make_tile = compile_kernel(_make_tile, set())
oldest_tile = compile_kernel(_oldest_tile, set())
caches_of_layer = compile_kernel(_caches_of_layer, set())
store_new_key = compile_kernel(_store_new_key, set())
load_queries = compile_kernel(_load_queries, set())


def _score_positions(
    tile: Tile, kv_head: int, table: Ints, begin: int, end: int, keys: Cache, values: Cache,
    rows: Floats, key_copies: Cache, value_copies: Cache, scores: Floats,
) -> None:  # fmt: skip
    """Fill in the vectors' scores [G, *] for the positions begin … end - 1. begin is a multiple of KEY_TILE."""
    is_copied = key_copies.size > 0
    stride = KEY_TILE if is_copied else tile.block_size
    places = np.int64(key_copies.ctypes.data) + tile.item_bytes * np.arange(0, KEY_TILE, LANES)
    next_places = places.copy()  # where nothing is next, what was there before is asked for
    for base in range(begin, end, KEY_TILE):
        if is_copied:
            first, last = visible(tile, 0, base)
            copy_keys(keys, values, table, kv_head, base, first, last, key_copies, value_copies)
        else:
            find_keys(tile, table, base, min(KEY_TILE, end - base), places)
            find_keys(tile, table, base + KEY_TILE, min(KEY_TILE, end - base - KEY_TILE), next_places)
        num_left = tile.num_vectors
        while num_left > 0:
            count = rows_beside(num_left)
            score_tile(rows, tile.num_vectors - num_left, count, tile, base, stride, places, next_places, keys)
            num_left -= count
        scores[:, base : base + KEY_TILE] = rows[:, SCORES : SCORES + KEY_TILE]


def _sum_positions(
    tile: Tile, kv_head: int, table: Ints, begin: int, end: int, keys: Cache, values: Cache,
    rows: Floats, key_copies: Cache, value_copies: Cache, scores: Floats,
) -> None:  # fmt: skip
    """Sum up the values of the positions begin … end - 1 by the vectors' scores [G, *]. begin is a multiple of KEY_TILE."""
    is_copied = key_copies.size > 0
    places = np.int64(value_copies.ctypes.data) + tile.item_bytes * value_copies.shape[1] * np.arange(KEY_TILE)
    next_places = places.copy()
    for base in range(begin, end, KEY_TILE):
        if is_copied:
            first, last = visible(tile, 0, base)
            copy_keys(keys, values, table, kv_head, base, first, last, key_copies, value_copies)
        else:
            find_values(tile, table, base, min(KEY_TILE, end - base), places)
            find_values(tile, table, base + KEY_TILE, min(KEY_TILE, end - base - KEY_TILE), next_places)
        rows[:, SCORES : SCORES + KEY_TILE] = scores[:, base : base + KEY_TILE]
        num_left = tile.num_vectors
        while num_left > 0:
            count = rows_beside(num_left)
            sum_tile(rows, tile.num_vectors - num_left, count, tile, base, places, next_places, values)
            num_left -= count


score_positions = compile_kernel(_score_positions, set())
sum_positions = compile_kernel(_sum_positions, set())


def _run_heads(
    op: Any,
    shape: Any,
    caches: Longs,  # [layers, 2]
    qkv: Floats,  # [R, (H + 2K) D]
    rotary: Floats,
    positions: Longs,
    slots: Longs,
    block_tables: Ints,
    counters: Longs,
    own: int,
    rows: Floats,  # scratch
    key_copies: Cache,  # scratch for blocks of an unusual shape, empty for others
    value_copies: Cache,
    scores: Floats,  # [R, H, KEY_TILE more than positions]
    attended: Floats,  # [R, H D]
) -> int:
    """Chunks are whole heads, and stretches of positions of those left over, whose last has the new key. Returns their number."""
    num_kv_heads, num_threads = shape.num_kv_heads, counters.shape[0] - 1
    num_heads, group = shape.num_rows * num_kv_heads, shape.num_heads // num_kv_heads
    keys, values = caches_of_layer(op, shape, caches, key_copies)
    num_whole = num_heads // num_threads
    num_chunks: int = num_threads * (num_whole + num_heads % num_threads)
    chunk = claim(counters, own, num_chunks)
    while chunk < num_chunks:
        head, part, num_parts = cut(chunk, num_heads, num_threads, num_whole)
        row, kv_head = head // num_kv_heads, head % num_kv_heads
        position, angles, table = positions[row], rotary[positions[row]], block_tables[row]
        if part == num_parts - 1:
            store_new_key(op, shape, kv_head, qkv[row], angles, slots[row], keys, values)
        tile = make_tile(op, shape, caches, keys.itemsize, kv_head, position, 0, shape.head_dim)
        load_queries(op, shape, tile, kv_head, qkv[row], angles, rows)
        if num_parts == 1:
            attend_tile(rows, tile, kv_head, table, keys, values, key_copies, value_copies)
            store_rows(rows, tile, row, kv_head * group, attended)
        else:
            oldest = oldest_tile(tile)
            num_tiles = position // KEY_TILE + 1 - oldest
            begin, end = oldest + num_tiles * part // num_parts, oldest + num_tiles * (part + 1) // num_parts
            scores_of_head = scores[row, kv_head * group : (kv_head + 1) * group]
            score_positions(
                tile,
                kv_head,
                table,
                begin * KEY_TILE,
                min(end * KEY_TILE, position + 1),
                keys,
                values,
                rows,
                key_copies,
                value_copies,
                scores_of_head,
            )
        finish(counters)
        chunk = claim(counters, own, num_chunks)
    return num_chunks


def _run_sums(
    op: Any,
    shape: Any,
    caches: Longs,
    positions: Longs,
    block_tables: Ints,
    counters: Longs,
    own: int,
    rows: Floats,
    key_copies: Cache,
    value_copies: Cache,
    scores: Floats,
    attended: Floats,  # [R, H D]
) -> int:
    """Chunks are columns of the heads left over. Returns their number."""
    num_kv_heads, num_threads, head_dim = shape.num_kv_heads, counters.shape[0] - 1, shape.head_dim
    num_heads, group = shape.num_rows * num_kv_heads, shape.num_heads // num_kv_heads
    keys, values = caches_of_layer(op, shape, caches, key_copies)
    unit = head_dim if key_copies.size > 0 else LANES  # columns that are not divided
    num_chunks: int = num_threads * (num_heads % num_threads)
    chunk = claim(counters, own, num_chunks)
    while chunk < num_chunks:
        head, part, num_parts = cut(chunk, num_heads, num_threads, 0)
        row, kv_head = head // num_kv_heads, head % num_kv_heads
        first = head_dim // unit * part // num_parts * unit
        last = head_dim // unit * (part + 1) // num_parts * unit
        tile = make_tile(op, shape, caches, keys.itemsize, kv_head, positions[row], first, last - first)
        begin_rows(rows, tile)
        sum_positions(
            tile,
            kv_head,
            block_tables[row],
            oldest_tile(tile) * KEY_TILE,
            positions[row] + 1,
            keys,
            values,
            rows,
            key_copies,
            value_copies,
            scores[row, kv_head * group : (kv_head + 1) * group],
        )
        store_rows(rows, tile, row, kv_head * group, attended[:, first:])
        finish(counters)
        chunk = claim(counters, own, num_chunks)
    return num_chunks


run_heads = compile_kernel(_run_heads, set())
run_sums = compile_kernel(_run_sums, set())
