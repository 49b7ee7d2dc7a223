"""A step of few rows as machine code: all operations of all layers in one call, see `step_ops`.

Such a step is read from memory more than it is computed, and made of some hundred operations of 10 to 50 µs, which is what
one call from Python and one wake-up of a thread cost. Here threads meet between operations without leaving the kernel.
What an operation computes of a row are the functions that the kernels for many rows consist of, with the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aphrodited.layers.addresses import bytes_at, floats_at, ints_at, matrix_at
from aphrodited.layers.finish_kernels import ADD, PLAIN, finish_row
from aphrodited.layers.float_kernels import multiply_rows as multiply_float_rows
from aphrodited.layers.float_tiles import PANEL as FLOAT_PANEL
from aphrodited.layers.float_tiles import TILE_ROWS as FLOAT_TILE_ROWS
from aphrodited.layers.half_floats import Cache
from aphrodited.layers.int8_kernels import multiply_rows, round_row
from aphrodited.layers.int8_tiles import DEPTH, PANEL, TILE_ROWS
from aphrodited.layers.kernels import Floats, Ints, Longs, compile_kernel
from aphrodited.layers.norm_kernels import center_row, normalize_row
from aphrodited.layers.shared_work import await_all, claim, finish, increase
from aphrodited.layers.step_attention import run_heads, run_sums
from aphrodited.layers.step_ops import Buffer, Kind, Norm
from aphrodited.layers.vector_tiles import KEY_TILE, LANES, padded, row_width

_GATED, _HEADS, _SUMS = int(Kind.GATED), int(Kind.HEADS), int(Kind.SUMS)
_ROOT_MEAN_SQUARE, _LAYER = int(Norm.ROOT_MEAN_SQUARE), int(Norm.LAYER)
_HIDDEN, _QKV, _ATTENDED = int(Buffer.HIDDEN), int(Buffer.QKV), int(Buffer.ATTENDED)
_ITEM_BYTES = 4  # of a float32


def _buffer(buffers: Longs, which: int, num_rows: int) -> Floats:
    """buffers: [len(Buffer), 2], address and width of each."""
    rows: Floats = matrix_at(buffers[which, 0], num_rows, buffers[which, 1])
    return rows


buffer = compile_kernel(_buffer, set())


def _norm_row(op: Any, row: Floats, result: Floats) -> None:
    if op.norm == _ROOT_MEAN_SQUARE:
        normalize_row(row, floats_at(op.norm_weight, op.num_channels), op.norm_eps, result)
    elif op.norm == _LAYER:
        weight, bias = floats_at(op.norm_weight, op.num_channels), floats_at(op.norm_bias, op.num_channels)
        center_row(row, weight, bias, op.norm_eps, result)
    else:
        result[:] = row


norm_row = compile_kernel(_norm_row, set())


def _prepare_rows(op: Any, rows: Floats, limit: float, floats: Floats, values: Any, steps: Floats) -> None:
    """Normalise the rows [R, K] into floats [R + 1, K], whose last row is scratch, and round them: values [R, C], steps [R]."""
    scratch = floats[rows.shape[0], : op.num_channels]
    for row in range(rows.shape[0]):
        normed = floats[row, : op.num_channels]
        norm_row(op, rows[row], normed)
        if not op.is_float:
            signs = floats_at(op.signs, op.num_channels)
            steps[row] = round_row(normed, signs, op.group, limit, scratch, values[row])


def _multiply_panel(
    values: Any, steps: Floats, panels: int, starts: int, scales: int, bias: int, panel: int, depth: int, result: Floats
) -> None:
    """result [R, PANEL]: the products of all rows with one panel of a weight, given by addresses. depth: C / DEPTH."""
    start = panel * PANEL * _ITEM_BYTES
    weights = bytes_at(panels + panel * depth * PANEL * DEPTH, depth, PANEL * DEPTH)
    for first in range(0, result.shape[0], TILE_ROWS):
        multiply_rows(
            values,
            first,
            min(TILE_ROWS, result.shape[0] - first),
            steps,
            weights,
            ints_at(starts + start, PANEL),
            floats_at(scales + start, PANEL),
            floats_at(bias + start, PANEL),
            result,
            first,
            0,
        )


def _multiply_float_panel(rows: Floats, panels: int, bias: int, panel: int, num_channels: int, result: Floats) -> None:
    """The same for one panel of a float32 weight; result [R, FLOAT_PANEL and more]."""
    weights = matrix_at(panels + panel * num_channels * FLOAT_PANEL * _ITEM_BYTES, num_channels, FLOAT_PANEL)
    biases = floats_at(bias + panel * FLOAT_PANEL * _ITEM_BYTES, FLOAT_PANEL)
    for first in range(0, result.shape[0], FLOAT_TILE_ROWS):
        num_rows = min(FLOAT_TILE_ROWS, result.shape[0] - first)
        multiply_float_rows(rows, first, num_rows, weights, biases, result, first, 0)


multiply_float_panel = compile_kernel(_multiply_float_panel, set())
prepare_rows = compile_kernel(_prepare_rows, set())
multiply_panel = compile_kernel(_multiply_panel, set())


def _compute_panel(
    op: Any, panel: int, floats: Floats, values: Any, steps: Floats, products: Floats, other: Floats, target: Floats
) -> None:
    """One panel's columns of the target [R, N]. products: [2, R, a panel's width], scratch."""
    depth = (op.num_channels + DEPTH - 1) // DEPTH
    width = FLOAT_PANEL if op.is_float else PANEL
    start = panel * width
    size = min(width, op.num_outputs - start)
    if op.is_float:
        multiply_float_panel(floats, op.panels, op.bias, panel, op.num_channels, products[0])
    else:
        multiply_panel(values, steps, op.panels, op.starts, op.scales, op.bias, panel, depth, products[0])
    if op.kind == _GATED and op.is_float:
        multiply_float_panel(floats, op.gate_panels, op.gate_bias, panel, op.num_channels, products[1])
    elif op.kind == _GATED:
        multiply_panel(
            values, steps, op.gate_panels, op.gate_starts, op.gate_scales, op.gate_bias, panel, depth, products[1]
        )
    for row in range(target.shape[0]):
        product, result = products[0, row, :size], target[row, start : start + size]
        if op.kind == _GATED:
            gate = products[1, row, :size]
            finish_row(op.finish, gate, gate)
            for j in range(size):
                result[j] = product[j] * gate[j]
        elif op.finish == ADD:
            for j in range(size):
                result[j] = product[j] + other[row, start + j]
        else:
            if op.finish != PLAIN:
                finish_row(op.finish, product, product)
            result[:] = product


compute_panel = compile_kernel(_compute_panel, set())


def _run_product(
    op: Any, shape: Any, buffers: Longs, counters: Longs, own: int, floats: Floats, values: Any, steps: Floats, products: Floats
) -> int:
    """Chunks are panels. Returns their number."""
    width = FLOAT_PANEL if op.is_float else PANEL
    num_panels: int = (op.num_outputs + width - 1) // width
    is_prepared = False
    panel = claim(counters, own, num_panels)
    while panel < num_panels:
        if not is_prepared:
            prepare_rows(op, buffer(buffers, op.source, shape.num_rows), shape.row_limit, floats, values, steps)
            is_prepared = True
        other, target = buffer(buffers, op.other, shape.num_rows), buffer(buffers, op.target, shape.num_rows)
        compute_panel(op, panel, floats, values, steps, products, other, target)
        finish(counters)
        panel = claim(counters, own, num_panels)
    return num_panels


run_product = compile_kernel(_run_product, set())


def _run_step(
    ops: Any,  # [number of operations] of OP
    shapes: Any,  # [1] of SHAPE
    places: Longs,  # [len(Buffer), 2], see `buffer`; but for these two:
    hidden: Floats,  # [R, E], overwritten
    wanted: int,  # the Buffer to be found in
    result: Floats,  # [R, its width]
    caches: Longs,  # [layers, 2]
    of_caches: Cache,  # [0], of the type of their numbers
    rotary: Floats,  # [P, R]
    positions: Longs,  # [R]
    slots: Longs,  # [R]
    block_tables: Ints,  # [R, M]
    scores: Floats,  # [R, heads, KEY_TILE more than positions], scratch
    arrivals: Longs,  # [1], zero
    counters: Longs,  # [number of operations, 1 + shares, LINE], new ones
) -> None:
    """One thread's part in all operations; it returns when all are done. Any number of threads may call it, at any time."""
    shape, buffers = shapes[0], places.copy()
    buffers[wanted, 0] = result.ctypes.data
    buffers[_HIDDEN, 0] = hidden.ctypes.data
    own = increase(arrivals, 0) % (counters.shape[1] - 1)
    most_channels = 0
    for o in range(ops.shape[0]):
        most_channels = max(most_channels, ops[o].num_channels)
    floats = np.empty((shape.num_rows + 1, most_channels), np.float32)
    values = np.zeros((shape.num_rows, (most_channels + DEPTH - 1) // DEPTH * DEPTH), np.uint8)
    steps, products = np.empty(shape.num_rows, np.float32), np.empty((2, shape.num_rows, max(PANEL, FLOAT_PANEL)), np.float32)
    num_copies = 0 if shape.head_dim % LANES == 0 and shape.block_size % LANES == 0 else KEY_TILE
    rows = np.empty((shape.num_heads // shape.num_kv_heads, row_width(shape.head_dim)), np.float32)
    key_copies = np.zeros((shape.head_dim, num_copies), of_caches.dtype)
    value_copies = np.zeros((num_copies, padded(shape.head_dim)), of_caches.dtype)
    for o in range(ops.shape[0]):
        if ops[o].kind == _HEADS:
            qkv, attended = buffer(buffers, _QKV, shape.num_rows), buffer(buffers, _ATTENDED, shape.num_rows)
            num_chunks = run_heads(
                ops[o], shape, caches, qkv, rotary, positions, slots, block_tables, counters[o], own,
                rows, key_copies, value_copies, scores, attended,
            )  # fmt: skip
        elif ops[o].kind == _SUMS:
            attended = buffer(buffers, _ATTENDED, shape.num_rows)
            num_chunks = run_sums(
                ops[o], shape, caches, positions, block_tables, counters[o], own, rows, key_copies, value_copies, scores, attended
            )
        else:
            num_chunks = run_product(ops[o], shape, buffers, counters[o], own, floats, values, steps, products)
        await_all(counters[o], num_chunks)


run_step = compile_kernel(_run_step, set(), releases_lock=True)
