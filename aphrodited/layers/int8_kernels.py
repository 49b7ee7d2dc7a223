"""Products of float32 rows with int8 weights, in one pass: rows are rounded, multiplied, scaled and finished block by block.

A thread takes some of the rows or some of the weights, so that nobody waits for another in between. What is finished of
a block comes from the cache: activation and what else belongs to a projection cost no pass over memory. Each result is
computed from its own row and its own weight alone, in one order. Compiled by numba on first use and kept on disk.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from aphrodited.layers.finish_kernels import PLAIN, finish_row
from aphrodited.layers.int8_tiles import (
    DEPTH,
    PANEL,
    TILE_ROWS,
    VNNI_512,
    host_instruction_set,
    multiply_tile,
)
from aphrodited.layers.kernels import Bytes, Floats, Ints, compile_kernel, run_shares
from aphrodited.layers.quantization_kernels import quantize_row

Unsigned = NDArray[np.uint8]

BLOCK_ROWS = 96  # rows rounded at once: with their results they fit into the second-level cache

instructions = host_instruction_set()
"""None if this CPU has none of them; then no kernel can be compiled."""

_multiply_6, _multiply_4, _multiply_2, _multiply_1 = (multiply_tile(instructions or VNNI_512, n) for n in (6, 4, 2, 1))


def _multiply_rows(
    values: Unsigned,  # [*, C]
    first: int,
    num_rows: int,
    steps: Floats,  # [*]
    panel: Bytes,  # [C / DEPTH, PANEL x DEPTH]
    starts: Ints,  # [PANEL]
    scales: Floats,  # [PANEL]
    bias: Floats,  # [PANEL]
    result: Floats,  # [*, *]
    row: int,
    column: int,
) -> None:
    """Fill result from [row, column] on with the products of TILE_ROWS rows at most, from the first on; see int8_tiles."""
    if num_rows == TILE_ROWS:
        _multiply_6(values, first, steps, panel, starts, scales, bias, result, row, column)
        return
    if num_rows & 4:
        _multiply_4(values, first, steps, panel, starts, scales, bias, result, row, column)
        first, row = first + 4, row + 4
    if num_rows & 2:
        _multiply_2(values, first, steps, panel, starts, scales, bias, result, row, column)
        first, row = first + 2, row + 2
    if num_rows & 1:
        _multiply_1(values, first, steps, panel, starts, scales, bias, result, row, column)


def _round_row(row: Floats, signs: Floats, group: int, limit: float, floats: Floats, values: Unsigned) -> np.float32:
    """Fill values with the row as integers from 1 to 2 limit + 1; returns what one step of them is worth."""
    step: np.float32 = quantize_row(row, signs, group, limit, floats)
    offset = np.int32(limit) + np.int32(1)
    for k in range(row.shape[0]):
        values[k] = np.uint8(np.int32(floats[k]) + offset)
    return step


multiply_rows = compile_kernel(_multiply_rows, set())
round_row = compile_kernel(_round_row, set())


def _multiply_block(
    rows: Floats,  # [R, K], BLOCK_ROWS at most
    signs: Floats,  # [K]
    group: int,
    limit: float,
    panels: Bytes,  # [P, C / DEPTH, PANEL x DEPTH]
    starts: Ints,  # [P, PANEL]
    scales: Floats,  # [P, PANEL]
    bias: Floats,  # [P, PANEL]
    kind: int,
    other: Floats,  # [R, N], read for ADD and MULTIPLY only
    first_panel: int,
    end_panel: int,
    values: Unsigned,  # [R, C], scratch
    result: Floats,  # [R, N]
) -> None:
    """The part of the result that some of the panels make."""
    num_rows, num_outputs = result.shape
    floats, steps = np.empty(rows.shape[1], np.float32), np.empty(num_rows, np.float32)
    beyond = np.empty((TILE_ROWS, PANEL), np.float32)  # for a panel that is wider than what is left of the result
    for row in range(num_rows):
        steps[row] = round_row(rows[row], signs, group, limit, floats, values[row])
    for p in range(first_panel, end_panel):
        start = p * PANEL
        size = min(PANEL, num_outputs - start)
        for first in range(0, num_rows, TILE_ROWS):
            tile_rows = min(TILE_ROWS, num_rows - first)
            if size == PANEL:
                multiply_rows(
                    values, first, tile_rows, steps, panels[p], starts[p], scales[p], bias[p], result, first, start
                )
            else:
                multiply_rows(values, first, tile_rows, steps, panels[p], starts[p], scales[p], bias[p], beyond, 0, 0)
                result[first : first + tile_rows, start:] = beyond[:tile_rows, :size]
    start, end = first_panel * PANEL, min(end_panel * PANEL, num_outputs)
    for row in range(num_rows if kind != PLAIN else 0):
        finish_row(kind, other[row, start:end], result[row, start:end])


multiply_block = compile_kernel(_multiply_block, set())


def _multiply_share(
    thread: int,
    num_threads: int,
    rows: Floats,
    signs: Floats,
    group: int,
    limit: float,
    panels: Bytes,
    starts: Ints,
    scales: Floats,
    bias: Floats,
    kind: int,
    other: Floats,
    by_rows: bool,
    result: Floats,
) -> None:
    """A thread's share of the result, shapes as above but for any number of rows. by_rows: some rows, not some panels."""
    num_rows, num_panels = rows.shape[0], panels.shape[0]
    first_row, end_row, first_panel, end_panel = 0, num_rows, 0, num_panels
    if by_rows:
        first_row, end_row = num_rows * thread // num_threads, num_rows * (thread + 1) // num_threads
    else:
        first_panel, end_panel = num_panels * thread // num_threads, num_panels * (thread + 1) // num_threads
    values = np.zeros((min(BLOCK_ROWS, end_row - first_row), panels.shape[1] * DEPTH), np.uint8)
    for first in range(first_row, end_row, BLOCK_ROWS):
        end = min(first + BLOCK_ROWS, end_row)
        multiply_block(
            rows[first:end],
            signs,
            group,
            limit,
            panels,
            starts,
            scales,
            bias,
            kind,
            other[first:end],
            first_panel,
            end_panel,
            values,
            result[first:end],
        )


multiply_share = compile_kernel(_multiply_share, set())


def _multiply_all(
    num_threads: int,
    rows: Floats,
    signs: Floats,
    group: int,
    limit: float,
    panels: Bytes,
    starts: Ints,
    scales: Floats,
    bias: Floats,
    kind: int,
    other: Floats,
    by_rows: bool,
    result: Floats,
) -> None:
    for thread in numba.prange(num_threads):
        multiply_share(
            thread, num_threads, rows, signs, group, limit, panels, starts, scales, bias, kind, other, by_rows, result
        )


multiply_all = compile_kernel(_multiply_all, set(), parallel=True)


def multiply(num_threads: int, *arguments: Any) -> None:
    """All of a result. arguments: those of _multiply_share from rows on."""
    run_shares(multiply_share, multiply_all, num_threads, *arguments)


def _pack_share(
    thread: int,
    num_threads: int,
    weight: Floats,  # [N, K]
    signs: Floats,  # [K]
    group: int,
    limit: float,
    row_offset: int,
    panels: Bytes,  # [P, C / DEPTH, PANEL x DEPTH], zeros
    starts: Ints,  # [P, PANEL]
    scales: Floats,  # [P, PANEL]
) -> None:
    """Round a thread's share of a weight into panels, with what undoes row_offset and the steps of the weight in a product."""
    num_outputs, num_channels = weight.shape
    floats = np.empty(num_channels, np.float32)
    for n in range(num_outputs * thread // num_threads, num_outputs * (thread + 1) // num_threads):
        p, place = n // PANEL, n % PANEL
        # A root of the group's size is in the weight and one in each row.
        scales[p, place] = quantize_row(weight[n], signs, group, limit, floats) / np.float32(group)
        total = np.int32(0)
        for k in range(num_channels):
            value = np.int32(floats[k])
            panels[p, k // DEPTH, place * DEPTH + k % DEPTH] = np.int8(value)
            total = np.int32(total + value)
        starts[p, place] = np.int32(-total * row_offset)


pack_share = compile_kernel(_pack_share, set())


def _pack_all(
    num_threads: int,
    weight: Floats,
    signs: Floats,
    group: int,
    limit: float,
    row_offset: int,
    panels: Bytes,
    starts: Ints,
    scales: Floats,
) -> None:
    for thread in numba.prange(num_threads):
        pack_share(thread, num_threads, weight, signs, group, limit, row_offset, panels, starts, scales)


pack_all = compile_kernel(_pack_all, set(), parallel=True)


def pack(num_threads: int, *arguments: Any) -> None:
    """Round all of a weight. arguments: those of _pack_share from weight on."""
    run_shares(pack_share, pack_all, num_threads, *arguments)
