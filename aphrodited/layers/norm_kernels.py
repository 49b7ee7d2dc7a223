"""RMSNorm as machine code: torch makes six operations of it, which take longer than the layer's attention.

Each row is computed by itself: a sum over it may be reordered, but always in the same way. Compiled by numba on first
use and kept on disk.
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.typing import NDArray

from aphrodited.layers.paged_attention_kernels import REORDERED, compile_kernel

Floats = NDArray[np.float32]


def _normalize_row(row: Floats, weight: Floats, eps: float, result: Floats) -> None:
    squares = np.float32(0.0)
    for k in range(row.shape[0]):
        squares += row[k] * row[k]
    scale = np.float32(1.0 / math.sqrt(squares / row.shape[0] + eps))
    for k in range(row.shape[0]):
        result[k] = row[k] * scale * weight[k]


normalize_row = compile_kernel(_normalize_row, REORDERED)


def _normalize(rows: Floats, weight: Floats, eps: float, result: Floats) -> None:
    """normalize_row for each of the rows [R, E]."""
    for row in range(rows.shape[0]):
        normalize_row(rows[row], weight, eps, result[row])


def _normalize_parallel(rows: Floats, weight: Floats, eps: float, result: Floats, num_threads: int) -> None:
    """The same, by several threads."""
    for thread in numba.prange(num_threads):
        for row in range(thread, rows.shape[0], num_threads):
            normalize_row(rows[row], weight, eps, result[row])


normalize = compile_kernel(_normalize, set())
normalize_parallel = compile_kernel(_normalize_parallel, set(), parallel=True)
