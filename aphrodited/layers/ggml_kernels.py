"""Rows of GGML's simple block types as float32, as machine code: a step of one row spends its time on nothing else.

Nothing is fused, so that the bits are those of whole tables widened operation by operation. Compiled by numba on first use and
kept on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from aphrodited.layers.kernels import Floats, Longs, compile_kernel

Octets = NDArray[np.uint8]

_BLOCK = 32  # values
_HALF_BYTES = 2
_HALF = ir.HalfType()


def _half_at(typing_context: Any, octets: Any, index: Any) -> tuple[Any, Callable[..., Any]]:
    """half_at(octets, index): the float16 that begins at a flat index, in float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), _HALF.as_pointer())
        return builder.fpext(builder.load(place, align=1), ir.FloatType())

    return types.float32(octets, types.intp), generate


half_at: Callable[..., np.float32] = intrinsic(_half_at)


def _widen_q8_0(table: Octets, token_ids: Longs, rows: Floats) -> None:
    """table: [V, bytes of a row], those of token_ids into rows [T, E]. So are all of these."""
    size = _HALF_BYTES + _BLOCK
    for row in range(token_ids.shape[0]):
        source = table[token_ids[row]]
        for block in range(source.shape[0] // size):
            start, scale = block * size + _HALF_BYTES, half_at(source, block * size)
            for i in range(_BLOCK):
                rows[row, block * _BLOCK + i] = np.float32(np.int8(source[start + i])) * scale


def _widen_q4_0(table: Octets, token_ids: Longs, rows: Floats) -> None:
    half = _BLOCK // 2
    size = _HALF_BYTES + half
    for row in range(token_ids.shape[0]):
        source = table[token_ids[row]]
        for block in range(source.shape[0] // size):
            start, scale = block * size + _HALF_BYTES, half_at(source, block * size)
            for i in range(half):
                pair = source[start + i]
                rows[row, block * _BLOCK + i] = (np.float32(pair & 15) - np.float32(8)) * scale
                rows[row, block * _BLOCK + half + i] = (np.float32(pair >> 4) - np.float32(8)) * scale


def _widen_q4_1(table: Octets, token_ids: Longs, rows: Floats) -> None:
    half = _BLOCK // 2
    size = 2 * _HALF_BYTES + half
    for row in range(token_ids.shape[0]):
        source = table[token_ids[row]]
        for block in range(source.shape[0] // size):
            start = block * size + 2 * _HALF_BYTES
            scale, least = half_at(source, block * size), half_at(source, block * size + _HALF_BYTES)
            for i in range(half):
                pair = source[start + i]
                rows[row, block * _BLOCK + i] = np.float32(pair & 15) * scale + least
                rows[row, block * _BLOCK + half + i] = np.float32(pair >> 4) * scale + least


KERNELS = {
    "Q8_0": compile_kernel(_widen_q8_0, set()),
    "Q4_0": compile_kernel(_widen_q4_0, set()),
    "Q4_1": compile_kernel(_widen_q4_1, set()),
}
"""By the names that GGML gives its types."""


def compile_kernels() -> None:
    """Run every kernel once, so that the first engine after an installation starts at once."""
    for kernel in KERNELS.values():
        kernel(np.zeros((1, 1), np.uint8), np.zeros(1, np.int64), np.zeros((1, 1), np.float32))
