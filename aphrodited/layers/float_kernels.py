"""Products of float32 rows with float32 weights in one pass, finished block by block while they are in the cache.

A thread takes some of the rows or some of the weights, so that nobody waits for another in between. Each result is
computed from its own row and its own weight alone, in one order. Compiled by numba on first use and kept on disk.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from aphrodited.layers.finish_kernels import PLAIN, finish_row
from aphrodited.layers.float_tiles import PANEL, TILE_ROWS, multiply_tile
from aphrodited.layers.kernels import Floats, compile_kernel, run_shares

Panels = NDArray[np.float32]  # [P, K, PANEL]

BLOCK_ROWS = 128  # rows that meet a panel while it is in the second-level cache, and fit in there beside it

_multiply_whole, _multiply_4, _multiply_2, _multiply_1 = (multiply_tile(n) for n in (TILE_ROWS, 4, 2, 1))


def _multiply_rows(
    rows: Floats,  # [*, K]
    first: int,
    num_rows: int,
    panel: Floats,  # [K, PANEL]
    bias: Floats,  # [PANEL]
    result: Floats,  # [*, *]
    row: int,
    column: int,
) -> None:
    """Fill result from [row, column] on with the products of TILE_ROWS rows at most, from the first on; see float_tiles."""
    if num_rows == TILE_ROWS:
        _multiply_whole(rows, first, panel, bias, result, row, column)
        return
    if num_rows & 4:
        _multiply_4(rows, first, panel, bias, result, row, column)
        first, row = first + 4, row + 4
    if num_rows & 2:
        _multiply_2(rows, first, panel, bias, result, row, column)
        first, row = first + 2, row + 2
    if num_rows & 1:
        _multiply_1(rows, first, panel, bias, result, row, column)


multiply_rows = compile_kernel(_multiply_rows, set())


def _multiply_block(
    rows: Floats,  # [R, K], BLOCK_ROWS at most
    panels: Panels,
    bias: Floats,  # [P, PANEL]
    kind: int,
    other: Floats,  # [R, N], read for ADD and MULTIPLY only
    first_panel: int,
    end_panel: int,
    result: Floats,  # [R, N]
) -> None:
    """The part of the result that some of the panels make."""
    num_rows, num_outputs = result.shape
    beyond = np.empty((TILE_ROWS, PANEL), np.float32)  # for a panel that is wider than what is left of the result
    for p in range(first_panel, end_panel):
        start = p * PANEL
        size = min(PANEL, num_outputs - start)
        for first in range(0, num_rows, TILE_ROWS):
            tile_rows = min(TILE_ROWS, num_rows - first)
            if size == PANEL:
                multiply_rows(rows, first, tile_rows, panels[p], bias[p], result, first, start)
            else:
                multiply_rows(rows, first, tile_rows, panels[p], bias[p], beyond, 0, 0)
                for i in range(tile_rows):  # an assignment of arrays takes numba 5 s to compile
                    for j in range(size):
                        result[first + i, start + j] = beyond[i, j]
    start, end = first_panel * PANEL, min(end_panel * PANEL, num_outputs)
    for row in range(num_rows if kind != PLAIN else 0):
        finish_row(kind, other[row, start:end], result[row, start:end])


multiply_block = compile_kernel(_multiply_block, set())


def _multiply_share(
    thread: int, num_threads: int, rows: Floats, panels: Panels, bias: Floats, kind: int, other: Floats, result: Floats
) -> None:
    """A thread's share of the result, shapes as above but for any number of rows: some of the rows, if that is a block for each."""
    num_rows, num_panels = rows.shape[0], panels.shape[0]
    first_row, end_row, first_panel, end_panel = 0, num_rows, 0, num_panels
    if num_rows >= BLOCK_ROWS * num_threads:
        first_row, end_row = num_rows * thread // num_threads, num_rows * (thread + 1) // num_threads
    else:
        first_panel, end_panel = num_panels * thread // num_threads, num_panels * (thread + 1) // num_threads
    for first in range(first_row, end_row, BLOCK_ROWS):
        end = min(first + BLOCK_ROWS, end_row)
        multiply_block(
            rows[first:end], panels, bias, kind, other[first:end], first_panel, end_panel, result[first:end]
        )


multiply_share = compile_kernel(_multiply_share, set())


def _multiply_all(
    num_threads: int, rows: Floats, panels: Panels, bias: Floats, kind: int, other: Floats, result: Floats
) -> None:
    for thread in numba.prange(num_threads):
        multiply_share(thread, num_threads, rows, panels, bias, kind, other, result)


multiply_all = compile_kernel(_multiply_all, set(), parallel=True)


def multiply(num_threads: int, *arguments: Any) -> None:
    """All of a result. arguments: those of _multiply_share from rows on."""
    run_shares(multiply_share, multiply_all, num_threads, *arguments)
