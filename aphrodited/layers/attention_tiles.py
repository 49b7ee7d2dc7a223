"""Attention of one tile of query rows over the keys of its sequence, for kernels; the arithmetic itself is `vector_tiles`'.

Goes over the keys in tiles of KEY_TILE positions, counted from the sequence's beginning. The rows of a tile and the heads that
share a key head are done side by side, so that a key is loaded once for many of them, but each of them by itself: its bits
depend on nothing but its own query and its visible keys and values, so they are the same in any company, however its sequence
was cut, and for any block size. What a row may not see is not multiplied with nothing, but left out.

Pointers are not checked: block ids come from the block manager.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aphrodited.layers.half_floats import Cache
from aphrodited.layers.kernels import Floats, Ints, Longs, compile_kernel
from aphrodited.layers.vector_tiles import (
    KEY_TILE,
    LANES,
    LARGEST,
    MAX_ROWS,
    QUERY,
    SCORES,
    SUMS,
    add_values,
    row_width,
    score_keys,
    totals_at,
    weigh,
)

score_1, score_2, score_3, score_4, score_8 = map(score_keys, (1, 2, 3, 4, 8))
add_1, add_2, add_3, add_4, add_8 = map(add_values, (1, 2, 3, 4, 8))


class Tile(NamedTuple):
    """Query rows that follow each other in one sequence, times the query heads that share a key head: one vector each.

    A row's vectors are side by side. The caches are addresses of the key head's numbers in the first block.
    """

    key_cache: int
    value_cache: int
    item_bytes: int  # of one number in them
    block_stride: int  # from one block to the next, in numbers
    block_size: int
    value_stride: int  # from one key's value to the next one's, in numbers
    head_dim: int  # of the queries and of what is summed
    group: int  # query heads of a key head
    num_vectors: int
    position: int  # of the first row
    window: int


def _visible(tile: Tile, vector: int, base: int) -> tuple[int, int]:
    """Which of the KEY_TILE keys from position `base` on a vector sees: from begin to end, none if they are equal."""
    num_keys = tile.position + vector // tile.group + 1 - base
    end = min(KEY_TILE, max(0, num_keys))
    return min(end, max(0, num_keys - tile.window)), end


def _find_keys(tile: Tile, table: Ints, base: int, num_keys: int, keys: Longs) -> None:
    """Fill in the addresses of each LANES keys from position `base` on: so many never cross a block."""
    for t in range(0, num_keys, LANES):
        block = np.int64(table[(base + t) // tile.block_size]) * tile.block_stride
        keys[t // LANES] = tile.key_cache + tile.item_bytes * (block + (base + t) % tile.block_size)


def _find_values(tile: Tile, table: Ints, base: int, num_keys: int, values: Longs) -> None:
    """Fill in the addresses of the values from position `base` on."""
    for t in range(0, num_keys, LANES):
        block = np.int64(table[(base + t) // tile.block_size]) * tile.block_stride
        first_value = tile.value_cache + tile.item_bytes * (block + (base + t) % tile.block_size * tile.value_stride)
        for i in range(min(LANES, num_keys - t)):
            values[t + i] = first_value + tile.item_bytes * i * tile.value_stride


def _rows_beside(num_left: int) -> int:
    """Of so many rows the number that there is code for: MAX_ROWS, 4, 3, 2 or 1."""
    count = MAX_ROWS
    while count > num_left:
        count = count // 2 if count > 4 else count - 1
    return count


visible = compile_kernel(_visible, set())
find_keys = compile_kernel(_find_keys, set())
find_values = compile_kernel(_find_values, set())
rows_beside = compile_kernel(_rows_beside, set())


def _score_rows(
    rows: Floats, first: int, count: int, begin: int, end: int, keys: Longs, next_keys: Longs, stride: int, head_dim: int,
    cache: Cache,
) -> None:  # fmt: skip
    """Scores of `count` rows, see rows_beside."""
    if count == 8:
        score_8(rows, first, begin, end, keys, next_keys, stride, head_dim, cache)
    elif count == 4:
        score_4(rows, first, begin, end, keys, next_keys, stride, head_dim, cache)
    elif count == 3:
        score_3(rows, first, begin, end, keys, next_keys, stride, head_dim, cache)
    elif count == 2:
        score_2(rows, first, begin, end, keys, next_keys, stride, head_dim, cache)
    else:
        score_1(rows, first, begin, end, keys, next_keys, stride, head_dim, cache)


def _add_rows(
    rows: Floats, first: int, count: int, begin: int, end: int, values: Longs, next_values: Longs, head_dim: int, cache: Cache
) -> None:
    """Values to the totals of `count` rows, see rows_beside."""
    if begin >= end:
        return
    if count == 8:
        add_8(rows, first, begin, end, values, next_values, head_dim, cache)
    elif count == 4:
        add_4(rows, first, begin, end, values, next_values, head_dim, cache)
    elif count == 3:
        add_3(rows, first, begin, end, values, next_values, head_dim, cache)
    elif count == 2:
        add_2(rows, first, begin, end, values, next_values, head_dim, cache)
    else:
        add_1(rows, first, begin, end, values, next_values, head_dim, cache)


def _add_row(
    rows: Floats, row: int, begin: int, end: int, values: Longs, next_values: Longs, head_dim: int, cache: Cache
) -> None:
    if begin < end:
        add_1(rows, row, begin, end, values, next_values, head_dim, cache)


score_rows = compile_kernel(_score_rows, set())
add_rows = compile_kernel(_add_rows, set())
add_row = compile_kernel(_add_row, set())


def _weigh_scores(rows: Floats, first: int, count: int, tile: Tile, base: int) -> None:
    """Take the scores of `count` vectors into their running softmax, and make weights of them."""
    totals, end_of_totals = totals_at(tile.head_dim), row_width(tile.head_dim)
    for vector in range(first, first + count):
        begin, end = visible(tile, vector, base)
        if begin == end:
            continue
        for t in range(begin):
            rows[vector, SCORES + t] = -np.inf
        for t in range(end, KEY_TILE):
            rows[vector, SCORES + t] = -np.inf
        shrinkage = weigh(rows, vector)
        if shrinkage != 1.0:
            for i in range(totals, end_of_totals):
                rows[vector, i] *= shrinkage


def _score_tile(
    rows: Floats, first: int, count: int, tile: Tile, base: int, stride: int, keys: Longs, next_keys: Longs, cache: Cache
) -> None:
    """Scores of `count` vectors for the keys of one tile that any of them sees. cache: any array of the keys' type."""
    begin, end_of_last = visible(tile, first, base)[0], visible(tile, first + count - 1, base)[1]
    score_rows(rows, first, count, begin - begin % LANES, end_of_last, keys, next_keys, stride, tile.head_dim, cache)


def _sum_tile(
    rows: Floats, first: int, count: int, tile: Tile, base: int, values: Longs, next_values: Longs, cache: Cache
) -> None:
    """What the scores make of one tile's values. What not all vectors see is added to each alone, in the same order."""
    weigh_scores(rows, first, count, tile, base)
    begin_of_last, end = visible(tile, first + count - 1, base)[0], visible(tile, first, base)[1]
    for vector in range(first, first + count):
        to = min(begin_of_last, visible(tile, vector, base)[1])
        add_row(rows, vector, visible(tile, vector, base)[0], to, values, next_values, tile.head_dim, cache)
    add_rows(rows, first, count, begin_of_last, end, values, next_values, tile.head_dim, cache)
    for vector in range(first, first + count):
        add_row(rows, vector, max(begin_of_last, end), visible(tile, vector, base)[1], values, next_values, tile.head_dim, cache)


weigh_scores = compile_kernel(_weigh_scores, set())
score_tile = compile_kernel(_score_tile, set())
sum_tile = compile_kernel(_sum_tile, set())


def _copy_keys(
    key_cache: Cache, value_cache: Cache, table: Ints, kv_head: int, base: int, begin: int, end: int,
    key_copies: Cache, value_copies: Cache,
) -> None:  # fmt: skip
    """Copy the keys begin … end - 1 of a tile to [D, KEY_TILE], and their values to [KEY_TILE, D and padding]."""
    head_dim, block_size = key_cache.shape[2:]
    for t in range(begin, end):
        block, offset = table[(base + t) // block_size], (base + t) % block_size
        for d in range(head_dim):
            key_copies[d, t] = key_cache[block, kv_head, d, offset]
            value_copies[t, d] = value_cache[block, kv_head, offset, d]


copy_keys = compile_kernel(_copy_keys, set())


def _attend_tile(
    rows: Floats, tile: Tile, kv_head: int, table: Ints, key_cache: Cache, value_cache: Cache,
    key_copies: Cache, value_copies: Cache,
) -> None:  # fmt: skip
    """Totals and sums of a tile's vectors over all keys that they see. Blocks of an unusual shape are copied first."""
    num_keys = tile.position + (tile.num_vectors - 1) // tile.group + 1
    oldest = max(0, tile.position + 1 - tile.window)
    is_copied = key_copies.size > 0
    stride = KEY_TILE if is_copied else tile.block_size
    keys, values = np.zeros(KEY_TILE // LANES, np.int64), np.zeros(KEY_TILE, np.int64)
    if is_copied:
        for t in range(KEY_TILE):
            keys[t // LANES] = key_copies.ctypes.data + tile.item_bytes * (t - t % LANES)
            values[t] = value_copies.ctypes.data + tile.item_bytes * t * value_copies.shape[1]
    begin = oldest % KEY_TILE
    if not is_copied:
        find_keys(tile, table, oldest - begin, min(KEY_TILE, num_keys - oldest + begin), keys)
        find_values(tile, table, oldest - begin, min(KEY_TILE, num_keys - oldest + begin), values)
    next_keys, next_values = keys.copy(), values.copy()  # where nothing is next, what was there before is asked for
    for base in range(oldest - begin, num_keys, KEY_TILE):
        end, next_end = min(KEY_TILE, num_keys - base), max(0, min(KEY_TILE, num_keys - base - KEY_TILE))
        if is_copied:
            copy_keys(key_cache, value_cache, table, kv_head, base, begin, end, key_copies, value_copies)
        else:
            find_keys(tile, table, base + KEY_TILE, next_end, next_keys)
            find_values(tile, table, base + KEY_TILE, next_end, next_values)
        num_left = tile.num_vectors
        while num_left > 0:
            count = rows_beside(num_left)
            first = tile.num_vectors - num_left
            score_tile(rows, first, count, tile, base, stride, keys, next_keys, key_cache)
            sum_tile(rows, first, count, tile, base, values, next_values, value_cache)
            num_left -= count
        begin = 0
        if not is_copied:
            keys, next_keys, values, next_values = next_keys, keys, next_values, values


attend_tile = compile_kernel(_attend_tile, set())


def _begin_rows(rows: Floats, tile: Tile) -> None:
    """Nothing summed yet."""
    rows[: tile.num_vectors] = 0.0
    for vector in range(tile.num_vectors):
        rows[vector, LARGEST] = -np.inf


begin_rows = compile_kernel(_begin_rows, set())


def _load_rows(rows: Floats, tile: Tile, qkv: Floats, first_row: int, first_head: int, scale: float) -> None:
    """Begin a tile's vectors with their queries."""
    begin_rows(rows, tile)
    for vector in range(tile.num_vectors):
        start = (first_head + vector % tile.group) * tile.head_dim
        for d in range(tile.head_dim):
            rows[vector, QUERY + d] = qkv[first_row + vector // tile.group, start + d] * scale


def _store_rows(rows: Floats, tile: Tile, first_row: int, first_head: int, output: Floats) -> None:
    """Divide a tile's totals by its sums. output: [*, H D], or what follows the first columns that were left out."""
    totals = totals_at(tile.head_dim)
    for vector in range(tile.num_vectors):
        weight_sum = np.float32(0.0)
        for lane in range(LANES):
            weight_sum += rows[vector, SUMS + lane]
        inverse = np.float32(1.0) / weight_sum
        start = (first_head + vector % tile.group) * tile.value_stride
        for d in range(tile.head_dim):
            output[first_row + vector // tile.group, start + d] = rows[vector, totals + d] * inverse


load_rows = compile_kernel(_load_rows, set())
store_rows = compile_kernel(_store_rows, set())
