"""Rotation, storing and paged attention for a GPU, in Triton: the arithmetic of `paged_attention_reference`, in place.

Keys and values are read where they lie, block by block, with a running softmax; sums are float32, whatever the
format of the tensors. Programs of `_attend` work on a tile of query rows of one sequence and on the query heads that share
one key head, so that each key is read once for all of them. Nothing here waits for the GPU, and no shape depends on
what a tensor holds, so all of it can be recorded in a CUDA graph.

Rows whose slot is negative are padding and touch no cache; sequences without keys give zeros. Pointers are not checked:
block ids and slots come from the block manager. With TRITON_INTERPRET=1 in the environment it all runs on a CPU, slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from aphrodited.layers.attention import AttentionMetadata

MAX_LANES = 64  # pairs of a query row and a head in one tile of a prompt
_MIN_DOT = 16  # the smallest side that tl.dot takes
_KEY_TILE_BYTES = 16_384  # keys of one pass; two passes of keys and values must fit into a GPU's shared memory
_MIN_SEQS = 256  # searched through at once: one compiled kernel serves every batch up to here

kernel: Callable[[Callable[..., Any]], Any] = triton.jit
# Not compiled anew for numbers that are 1 or multiples of 16: that would stall a step whenever such a batch comes first.
general_kernel: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=["num_seqs", "table_width", "window"])


@kernel
def _rotate(source, target, angles, HALF: tl.constexpr, HALF_PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Turn the pairs (i, i + HALF) of one head by its row's angles: HALF cosines, then HALF sines."""
    i = tl.arange(0, HALF_PADDED)
    x = tl.load(source + i, mask=i < HALF, other=0.0).to(tl.float32)
    y = tl.load(source + HALF + i, mask=i < HALF, other=0.0).to(tl.float32)
    cosine = tl.load(angles + i, mask=i < HALF, other=0.0)
    sine = tl.load(angles + HALF + i, mask=i < HALF, other=0.0)
    tl.store(target + i, (x * cosine - y * sine).to(target.dtype.element_ty), mask=i < HALF)
    tl.store(target + HALF + i, (y * cosine + x * sine).to(target.dtype.element_ty), mask=i < HALF)


@kernel
def _rotate_and_store(  # type: ignore[no-untyped-def]
    qkv,  # [T, (H + 2K) D]; queries are rotated in place
    rotary,  # [P, 2 HALF] float32
    positions,  # [T]
    slot_mapping,  # [T]
    key_cache,  # [N, K, B, D]
    value_cache,  # [N, K, B, D]
    num_heads,
    num_kv_heads,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """One head of one row: a query, a key or a value."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = qkv + (row * (num_heads + 2 * num_kv_heads) + head) * HEAD_DIM
    angles = rotary + tl.load(positions + row) * 2 * HALF
    slot = tl.load(slot_mapping + row)
    if head < num_heads:
        _rotate(source, source, angles, HALF, HALF_PADDED)
    elif slot >= 0:
        kv_head = (head - num_heads) % num_kv_heads
        place = ((slot // BLOCK_SIZE * num_kv_heads + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE) * HEAD_DIM
        d = tl.arange(0, HEAD_PADDED)
        if head < num_heads + num_kv_heads:
            _rotate(source, key_cache + place, angles, HALF, HALF_PADDED)
            is_rest = (d >= 2 * HALF) & (d < HEAD_DIM)
            tl.store(key_cache + place + d, tl.load(source + d, mask=is_rest), mask=is_rest)
        else:
            tl.store(value_cache + place + d, tl.load(source + d, mask=d < HEAD_DIM), mask=d < HEAD_DIM)


@kernel
def _rows_of(tile, cu_seqlens, num_seqs, TILE_ROWS: tl.constexpr, SEQS_PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sequence of a tile and its first row.

    Tile cu_seqlens[s] // TILE_ROWS + s is the first of sequence s: that leaves room for all of its rows, and some tiles empty.
    """
    s = tl.arange(0, SEQS_PADDED)
    first_tiles = tl.load(cu_seqlens + s, mask=s < num_seqs, other=0) // TILE_ROWS + s
    sequence = tl.sum(((s < num_seqs) & (first_tiles <= tile)).to(tl.int32), 0) - 1
    start = tl.load(cu_seqlens + sequence)
    return sequence, start + (tile - start // TILE_ROWS - sequence) * TILE_ROWS


@kernel
def _weigh(scores, largest):  # type: ignore[no-untyped-def]
    """One pass of a running softmax: weights [LANES, KEYS], what to shrink earlier sums by, the largest score so far."""
    new_largest = tl.maximum(largest, tl.max(scores, 1))
    subtracted = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # a lane that has seen no key yet
    return tl.exp(scores - subtracted[:, None]), tl.exp(largest - subtracted), new_largest


@general_kernel
def _attend(  # type: ignore[no-untyped-def]
    qkv,  # [T, (H + 2K) D], queries rotated
    key_cache,  # [N, K, B, D]
    value_cache,  # [N, K, B, D]
    block_tables,  # [S, M]
    cu_seqlens,  # [S + 1]
    context_lens,  # [S]
    output,  # [T, H D]
    num_seqs, table_width, num_kv_heads, window, scale,
    GROUP: tl.constexpr,  # query heads per key head
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    LANES: tl.constexpr,  # TILE_ROWS x GROUP, padded
    KEYS: tl.constexpr,  # keys of one pass
    SEQS_PADDED: tl.constexpr,
    IS_DECODE: tl.constexpr,  # every sequence has one row
):
    """Causal attention of one tile of rows over the last `window` keys of its sequence."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    if IS_DECODE:
        sequence = tile
        first_row = tile
    else:
        sequence, first_row = _rows_of(tile, cu_seqlens, num_seqs, TILE_ROWS, SEQS_PADDED)
    end_row = tl.load(cu_seqlens + sequence + 1)
    if first_row >= end_row:
        return
    num_keys = tl.load(context_lens + sequence)

    lane, d = tl.arange(0, LANES), tl.arange(0, HEAD_PADDED)
    row, head = first_row + lane // GROUP, kv_head * GROUP + lane % GROUP
    position = num_keys - end_row + row  # [LANES]; a sequence's rows are its last tokens
    is_query = ((lane < TILE_ROWS * GROUP) & (row < end_row))[:, None] & (d < HEAD_DIM)[None, :]
    query_width = num_kv_heads * (GROUP + 2) * HEAD_DIM
    query_at = row.to(tl.int64)[:, None] * query_width + head[:, None] * HEAD_DIM + d[None, :]
    query = tl.load(qkv + query_at, mask=is_query, other=0.0)  # [LANES, D]

    num_visible = num_keys - end_row + tl.minimum(first_row + TILE_ROWS, end_row)  # to the tile's last row
    oldest = tl.maximum(0, num_keys - end_row + first_row + 1 - window)  # that the tile's first row sees
    largest = tl.full([LANES], float("-inf"), tl.float32)
    weight_sum = tl.zeros([LANES], tl.float32)
    total = tl.zeros([LANES, HEAD_PADDED], tl.float32)
    for begin in range(oldest // KEYS * KEYS, num_visible, KEYS):
        t = begin + tl.arange(0, KEYS)
        block = tl.load(block_tables + sequence * table_width + t // BLOCK_SIZE, mask=(oldest <= t) & (t < num_visible), other=0)
        place = ((block.to(tl.int64) * num_kv_heads + kv_head) * BLOCK_SIZE + t % BLOCK_SIZE) * HEAD_DIM
        is_key = ((oldest <= t) & (t < num_visible))[:, None] & (d < HEAD_DIM)[None, :]
        keys = tl.load(key_cache + place[:, None] + d[None, :], mask=is_key, other=0.0)  # [KEYS, D]
        values = tl.load(value_cache + place[:, None] + d[None, :], mask=is_key, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale  # [LANES, KEYS]
        distance = position[:, None] - t[None, :]
        scores = tl.where((distance >= 0) & (distance < window), scores, float("-inf"))
        weights, shrink, largest = _weigh(scores, largest)
        weight_sum = weight_sum * shrink + tl.sum(weights, 1)
        total = total * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    result = total / tl.where(weight_sum == 0.0, 1.0, weight_sum)[:, None]
    output_at = row.to(tl.int64)[:, None] * (num_kv_heads * GROUP * HEAD_DIM) + head[:, None] * HEAD_DIM + d[None, :]
    tl.store(output + output_at, result.to(output.dtype.element_ty), mask=is_query)


def rotate_and_store(
    qkv: Tensor, rotary: Tensor, metadata: AttentionMetadata, key_cache: Tensor, value_cache: Tensor
) -> None:
    """Rotate the queries of qkv [T, (H + 2K) D] in place; store rotated keys, and values, in [N, K, B, D] caches."""
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    half = rotary.shape[1] // 2
    _rotate_and_store[(qkv.shape[0], num_heads + 2 * num_kv_heads)](
        qkv,
        rotary,
        metadata.positions,
        metadata.slot_mapping,
        key_cache,
        value_cache,
        num_heads,
        num_kv_heads,
        HEAD_DIM=head_dim,
        HEAD_PADDED=triton.next_power_of_2(head_dim),
        HALF=half,
        HALF_PADDED=triton.next_power_of_2(half),
        BLOCK_SIZE=block_size,
        num_warps=1,
    )


def attend(
    qkv: Tensor,
    metadata: AttentionMetadata,
    key_cache: Tensor,
    value_cache: Tensor,
    window: int,
    scale: float,
    output: Tensor,
) -> None:
    """Fill the first T rows of output [R, H D] with causal attention over the last `window` keys of each sequence."""
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    num_tokens, num_seqs = metadata.positions.shape[0], metadata.context_lens.shape[0]
    group = output.shape[1] // head_dim // num_kv_heads
    head_padded = max(_MIN_DOT, triton.next_power_of_2(head_dim))
    is_decode = metadata.max_query_len == 1
    tile_rows = 1 if is_decode else max(1, MAX_LANES // group)
    num_tiles = num_seqs if is_decode else num_tokens // tile_rows + num_seqs
    _attend[(num_tiles, num_kv_heads)](
        qkv,
        key_cache,
        value_cache,
        metadata.block_tables,
        metadata.cu_seqlens,
        metadata.context_lens,
        output,
        num_seqs,
        metadata.block_tables.shape[1],
        num_kv_heads,
        min(window, torch.iinfo(torch.int32).max),
        scale,
        GROUP=group,
        HEAD_DIM=head_dim,
        HEAD_PADDED=head_padded,
        BLOCK_SIZE=block_size,
        TILE_ROWS=tile_rows,
        LANES=max(_MIN_DOT, triton.next_power_of_2(tile_rows * group)),
        KEYS=max(_MIN_DOT, min(64, _KEY_TILE_BYTES // (head_padded * key_cache.element_size()))),
        SEQS_PADDED=max(_MIN_SEQS, triton.next_power_of_2(num_seqs)),
        IS_DECODE=is_decode,
        num_warps=4,
        num_stages=2,
    )
