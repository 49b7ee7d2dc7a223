"""Norms as machine code: torch makes six operations of RMSNorm, which take longer than the layer's attention.

Each row is computed by itself: a sum over it may be reordered, but always in the same way. Compiled by numba on first
use and kept on disk.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from aphrodited.layers.kernels import REORDERED, compile_kernel

Floats = NDArray[np.float32]


def _normalize_row(row: Floats, weight: Floats, eps: float, result: Floats) -> None:
    squares = np.float32(0.0)
    for k in range(row.shape[0]):
        squares += row[k] * row[k]
    scale = np.float32(1.0 / math.sqrt(squares / row.shape[0] + eps))
    for k in range(row.shape[0]):
        result[k] = row[k] * scale * weight[k]


def _center_row(row: Floats, weight: Floats, bias: Floats, eps: float, result: Floats) -> None:
    """LayerNorm of a row; NaN if its squares overflow, so that such a row is not taken for a sound one."""
    total = np.float32(0.0)
    for k in range(row.shape[0]):
        total += row[k]
    mean = np.float32(total / row.shape[0])
    squares = np.float32(0.0)
    for k in range(row.shape[0]):
        squares += (row[k] - mean) * (row[k] - mean)
    scale = np.float32(1.0 / math.sqrt(squares / row.shape[0] + eps))
    if math.isinf(squares):
        scale = np.float32(np.nan)
    for k in range(row.shape[0]):
        result[k] = (row[k] - mean) * scale * weight[k] + bias[k]


normalize_row = compile_kernel(_normalize_row, REORDERED)
center_row = compile_kernel(_center_row, REORDERED)


def _normalize(rows: Floats, weight: Floats, eps: float, result: Floats) -> None:
    """normalize_row for each of the rows [R, E]."""
    for row in range(rows.shape[0]):
        normalize_row(rows[row], weight, eps, result[row])


def _normalize_parallel(rows: Floats, weight: Floats, eps: float, result: Floats, num_threads: int) -> None:
    """The same, by several threads."""
    for thread in numba.prange(num_threads):
        for row in range(thread, rows.shape[0], num_threads):
            normalize_row(rows[row], weight, eps, result[row])


def _normalize_heads(rows: Floats, weight: Floats, eps: float) -> None:
    """normalize_row in place for the leading heads of rows [R, *], each by its own row of the weight [heads, D]."""
    num_heads, size = weight.shape
    for row in range(rows.shape[0]):
        for i in range(num_heads):
            head = rows[row, i * size : (i + 1) * size]
            normalize_row(head, weight[i], eps, head)


def _center(rows: Floats, weight: Floats, bias: Floats, eps: float, result: Floats) -> None:
    """center_row for each of the rows [R, E]."""
    for row in range(rows.shape[0]):
        center_row(rows[row], weight, bias, eps, result[row])


def _center_parallel(rows: Floats, weight: Floats, bias: Floats, eps: float, result: Floats, num_threads: int) -> None:
    """The same, by several threads."""
    for thread in numba.prange(num_threads):
        for row in range(thread, rows.shape[0], num_threads):
            center_row(rows[row], weight, bias, eps, result[row])


normalize_heads = compile_kernel(_normalize_heads, set())
center = compile_kernel(_center, set())
center_parallel = compile_kernel(_center_parallel, set(), parallel=True)
normalize = compile_kernel(_normalize, set())
normalize_parallel = compile_kernel(_normalize_parallel, set(), parallel=True)
