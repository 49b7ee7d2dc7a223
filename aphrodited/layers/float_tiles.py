"""Products of a tile of float32 rows with a panel of weights, written in LLVM's own language, where every order is explicit.

An output is the bias, to which the products of all channels are added one after the other, each in one rounding: the same
chain for one row and for many, in whatever tile. The sums of a tile stay in registers until the last channel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from aphrodited.layers.float_weight import NUM_VECTORS, num_lanes
from aphrodited.layers.tile_code import load, move, place, spread, store

LANES = num_lanes() or 8
PANEL = LANES * NUM_VECTORS  # outputs side by side
TILE_ROWS = 8 if LANES == 16 else 6
"""Rows that share a pass over a panel: AVX-512 has 32 registers and keeps 16 sums in them, AVX2 12 in 16."""

_FLOAT, _SIZE = ir.FloatType(), ir.IntType(64)
_FLOATS = ir.VectorType(_FLOAT, LANES)
_ITEM_BYTES = 4


def multiply_tile(num_rows: int) -> Callable[..., None]:
    """For kernels: multiply(rows, first_row, panel, bias, result, result_row, result_column).

    rows: [*, K], those from first_row to first_row + num_rows are multiplied, TILE_ROWS at most.  panel: [K, PANEL].
    bias: [PANEL].  result: [*, *].  All float32; the numbers of a row lie together.
    result[result_row + i, result_column + j] becomes bias[j] + the product of row i with output j.
    """

    def multiply(
        typing_context: Any, rows: Any, first_row: Any, panel: Any, bias: Any, result: Any, result_row: Any, column: Any
    ) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, panel, bias, result = (
                context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 3, 4)
            )
            first, result_row, column = arguments[1], arguments[5], arguments[6]
            sources = [place(builder, rows, builder.add(first, _SIZE(i)), _SIZE(0)) for i in range(num_rows)]
            sums = _add_products(builder, sources, panel, bias.data)
            offset = builder.mul(column, _SIZE(_ITEM_BYTES))
            for i, sums_of_row in enumerate(sums):
                target = place(builder, result, builder.add(result_row, _SIZE(i)), offset)
                for v, total in enumerate(sums_of_row):
                    store(builder, builder.load(total), _vector(builder, target, v))
            return context.get_dummy_value()

        size = types.intp
        return types.void(rows, size, panel, bias, result, size, size), generate

    function: Callable[..., None] = intrinsic(multiply)
    return function


def _add_products(builder: Any, sources: list[Any], panel: Any, bias: Any) -> list[list[Any]]:
    """Where the sums of each source's row are, NUM_VECTORS of them."""
    sums = [[cgutils.alloca_once(builder, _FLOATS) for _ in range(NUM_VECTORS)] for _ in sources]  # type: ignore[no-untyped-call]
    for sums_of_row in sums:
        for v, total in enumerate(sums_of_row):
            builder.store(load(builder, _vector(builder, bias, v), _FLOATS), total)
    multiply_add = builder.module.declare_intrinsic(f"llvm.fma.v{LANES}f32", (), ir.FunctionType(_FLOATS, [_FLOATS] * 3))
    with cgutils.for_range(builder, builder.extract_value(panel.shape, 0)) as loop:
        line = move(builder, panel.data, builder.mul(loop.index, _SIZE(_ITEM_BYTES * PANEL)))
        weights = [load(builder, _vector(builder, line, v), _FLOATS) for v in range(NUM_VECTORS)]
        offset = builder.mul(loop.index, _SIZE(_ITEM_BYTES))
        for source, sums_of_row in zip(sources, sums, strict=True):
            channel = spread(builder, load(builder, move(builder, source, offset), _FLOAT), _FLOATS)
            for weight, total in zip(weights, sums_of_row, strict=True):
                builder.store(builder.call(multiply_add, [channel, weight, builder.load(total)]), total)
    return sums


def _vector(builder: Any, start: Any, index: int) -> Any:
    return move(builder, start, _SIZE(_ITEM_BYTES * LANES * index))
