"""The Hadamard transform of GROUP channels, for kernels, in registers.

Its six steps are sums and differences of channels that lie 1, 2, 4 … 32 apart: within a register the other channel is a
shuffle away, which LLVM does not find in a loop. Written in LLVM's own language with vectors of LANES numbers on every CPU; LLVM
cuts them to its registers. Every sum is rounded by itself, so channels have the same bits on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

GROUP = 64
LANES = 16

_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(ir.IntType(32), LANES)


def _transform(typing_context: Any, row: Any, signs: Any, start: Any, result: Any) -> tuple[Any, Callable[..., Any]]:
    """transform(row, signs, start, result): result[start: start + GROUP] becomes the transform of the same part of row x signs.

    All are float32 and contiguous.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        row, signs, result = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 3))
        starts = [builder.add(arguments[2], arguments[2].type(lane)) for lane in range(0, GROUP, LANES)]
        vectors = [builder.fmul(*(_load(builder, array, start) for array in (row, signs))) for start in starts]
        distance = 1
        while distance < LANES:
            vectors = [_within(builder, vector, distance) for vector in vectors]
            distance *= 2
        distance = 1
        while distance < len(vectors):
            vectors = _between(builder, vectors, distance)
            distance *= 2
        for vector, start in zip(vectors, starts, strict=True):
            place = builder.bitcast(builder.gep(result.data, [start]), _FLOATS.as_pointer())
            builder.store(vector, place, align=4)
        return context.get_dummy_value()

    return types.void(row, signs, types.intp, result), generate


transform: Callable[..., None] = intrinsic(_transform)


def _load(builder: Any, array: Any, start: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(array.data, [start]), _FLOATS.as_pointer()), align=4)


def _within(builder: Any, vector: Any, distance: int) -> Any:
    """Sums and differences of lanes: where bit `distance` of a lane's number is set, the lane itself is subtracted."""
    others = builder.shuffle_vector(vector, vector, _INTS([lane ^ distance for lane in range(LANES)]))
    signed = builder.fmul(vector, _FLOATS([-1.0 if lane & distance else 1.0 for lane in range(LANES)]))
    return builder.fadd(others, signed)


def _between(builder: Any, vectors: list[Any], distance: int) -> list[Any]:
    """Sums and differences of whole vectors."""
    return [
        builder.fsub(vectors[i ^ distance], vector) if i & distance else builder.fadd(vector, vectors[i ^ distance])
        for i, vector in enumerate(vectors)
    ]
