"""The inner loops of attention over a tile of keys, written in LLVM's own language, where every order is explicit.

    score_keys      products of rows' queries with LANES keys
    weigh           scores of one row to weights, and what its running softmax must be shrunk by
    add_values      weighted values added to rows' totals

A row's sums take the same products in the same order, each multiplied and added in one rounding, however many rows share a
call and each register's load: so a row has the same bits alone and in company. Vectors have LANES numbers on every CPU;
LLVM cuts them to its registers.

All that belongs to a row lies in one row of a matrix, float32 [V, row_width(D)]:

    SCORES          KEY_TILE scores, then weights
    SUMS            LANES partial sums of weights
    LARGEST         the largest score so far
    QUERY           D numbers
    totals_at(D)    D numbers, padded to whole vectors

Keys and values are float32 or float16; what is computed of them is float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic, register_jitable

from aphrodited.layers.half_floats import item_bytes, load_floats
from aphrodited.layers.prefetch import prefetch_line

ARITHMETIC = 2
"""Raised with every change to the order or kind of operations: in an engine's fingerprint, because last bits differ."""

LANES = 16
KEY_TILE = 64  # keys whose scores are weighed together

MAX_ROWS = 8 if binding.get_host_cpu_features().get("avx512f") else 4
"""Rows of a product that leave few registers idle and spill none."""

SCORES, SUMS, LARGEST, QUERY = 0, KEY_TILE, KEY_TILE + LANES, KEY_TILE + 2 * LANES

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)
_ITEM_BYTES = 4

_ROUNDING = 1.5 * 2.0**23  # added to a float, it leaves the nearest integer in the lowest bits
_ONE_BITS, _MANTISSA_BITS = 0x3F800000, 23  # of a float32
_SMALLEST_EXPONENT = -126.0
_EXP2_COEFFICIENTS = [math.log(2.0) ** k / math.factorial(k) for k in range(7)]  # 1e-7 off at most, from -1/2 to 1/2

Kernel = Callable[..., Any]


@register_jitable
def padded(head_dim: int) -> int:
    """Numbers of whole vectors that hold so many."""
    return (head_dim + LANES - 1) // LANES * LANES


@register_jitable
def totals_at(head_dim: int) -> int:
    return QUERY + padded(head_dim)


@register_jitable
def row_width(head_dim: int) -> int:
    return QUERY + 2 * padded(head_dim)


def score_keys(num_rows: int) -> Kernel:
    """For kernels: score(rows, first, begin, end, keys, next_keys, stride, head_dim, cache).

    Scores of the rows first … first + num_rows - 1 for the keys begin … end - 1 of a tile, and for all that share a vector with
    one of these; begin is a multiple of LANES.
    keys: int64 [KEY_TILE / LANES], for each LANES keys the address of their first numbers, which lie together. The next ones
    follow `stride` numbers on.
    next_keys: the same of what is scored next. With each load its counterpart there is asked for.
    cache: any array of the keys' type, see `half_floats`.
    """

    def score(
        typing_context: Any, rows: Any, first: Any, begin: Any, end: Any, keys: Any, next_keys: Any, stride: Any, head_dim: Any,
        cache: Any,
    ) -> tuple[Any, Kernel]:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, keys, next_keys = (_array(context, builder, signature, arguments, i) for i in (0, 4, 5))
            _, first, begin, end, _, _, stride, head_dim, _ = arguments
            queries = [_item(builder, rows, first, first.type(QUERY), i) for i in range(num_rows)]
            stride_bytes = builder.mul(stride, stride.type(item_bytes(cache.dtype)))

            def score_columns(column: Any, num_vectors: int) -> None:
                vector = builder.udiv(column, column.type(LANES))
                starts, next_starts = (
                    [builder.load(builder.gep(array.data, [_plus(builder, vector, v)])) for v in range(num_vectors)]
                    for array in (keys, next_keys)
                )
                sums = [[_variable(builder, _constant(0.0)) for _ in queries] for _ in starts]
                with cgutils.for_range(builder, head_dim) as loop:
                    offset = builder.mul(loop.index, stride_bytes)
                    for start, next_start, sums_of_vector in zip(starts, next_starts, sums, strict=True):
                        numbers = load_floats(builder, cache.dtype, builder.add(start, offset), LANES)
                        prefetch_line(builder, builder.add(next_start, offset))
                        _add_products(builder, queries, loop.index, numbers, sums_of_vector)
                for v, sums_of_vector in enumerate(sums):
                    for i, total in enumerate(sums_of_vector):
                        place = _item(builder, rows, first, _plus(builder, column, SCORES + LANES * v), i)
                        _store(builder, builder.load(total), place)

            whole_end = builder.and_(_plus(builder, end, LANES - 1), end.type(-LANES))
            _for_vectors(builder, begin, whole_end, _vectors_beside(num_rows), score_columns)
            return context.get_dummy_value()

        size = types.intp
        return types.void(rows, size, size, size, keys, next_keys, size, size, cache), generate

    kernel: Kernel = intrinsic(score)
    return kernel


def add_values(num_rows: int) -> Kernel:
    """For kernels: add(rows, first, begin, end, values, next_values, head_dim, cache).

    To the totals of the rows first … first + num_rows - 1: the values begin … end - 1 of the tile, in order, by their weights.
    values: int64 [KEY_TILE], their addresses; each may be read as whole vectors. next_values, cache: see `score_keys`.
    """

    def add(
        typing_context: Any, rows: Any, first: Any, begin: Any, end: Any, values: Any, next_values: Any, head_dim: Any, cache: Any
    ) -> tuple[Any, Kernel]:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, values, next_values = (_array(context, builder, signature, arguments, i) for i in (0, 4, 5))
            _, first, begin, end, _, _, head_dim, _ = arguments
            weights = [_item(builder, rows, first, first.type(SCORES), i) for i in range(num_rows)]
            width = builder.and_(builder.add(head_dim, head_dim.type(LANES - 1)), head_dim.type(-LANES))
            totals = builder.add(width, width.type(QUERY))

            def add_columns(column: Any, num_vectors: int) -> None:
                places = [
                    [_item(builder, rows, first, builder.add(totals, _plus(builder, column, LANES * v)), i) for i in range(num_rows)]
                    for v in range(num_vectors)
                ]
                sums = [[_variable(builder, _load(builder, place)) for place in group] for group in places]
                with cgutils.for_range_slice(builder, begin, end, begin.type(1), begin.type) as (key, _):
                    value, next_value = (builder.load(builder.gep(array.data, [key])) for array in (values, next_values))
                    for v in range(num_vectors):
                        offset = builder.mul(_plus(builder, column, LANES * v), column.type(item_bytes(cache.dtype)))
                        prefetch_line(builder, builder.add(next_value, offset))
                        numbers = load_floats(builder, cache.dtype, builder.add(value, offset), LANES)
                        _add_products(builder, weights, key, numbers, sums[v])
                for group, sums_of_group in zip(places, sums, strict=True):
                    for place, total in zip(group, sums_of_group, strict=True):
                        _store(builder, builder.load(total), place)

            _for_vectors(builder, width.type(0), width, _vectors_beside(num_rows), add_columns)
            return context.get_dummy_value()

        size = types.intp
        return types.void(rows, size, size, size, values, next_values, size, cache), generate

    kernel: Kernel = intrinsic(add)
    return kernel


def _vectors_beside(num_rows: int) -> int:
    """How many vectors a few rows are multiplied with at a time, so that sums do not wait for each other."""
    return max(1, min(4, MAX_ROWS // num_rows))


def _for_vectors(builder: Any, begin: Any, end: Any, num_vectors: int, do: Callable[[Any, int], None]) -> None:
    """do(column, how many vectors) for all columns from begin to end: num_vectors at a time, then the rest one by one."""
    size = begin.type
    at_a_time = size(LANES * num_vectors)
    rest = builder.sub(end, builder.urem(builder.sub(end, begin), at_a_time))
    with cgutils.for_range_slice(builder, begin, rest, at_a_time, size) as (column, _):
        do(column, num_vectors)
    if num_vectors > 1:
        with cgutils.for_range_slice(builder, rest, end, size(LANES), size) as (column, _):
            do(column, 1)


def _plus(builder: Any, number: Any, more: int) -> Any:
    return builder.add(number, number.type(more))


def _variable(builder: Any, value: Any) -> Any:
    """A place for a value that changes; a register in the end."""
    place = cgutils.alloca_once(builder, value.type)  # type: ignore[no-untyped-call]
    builder.store(value, place)
    return place


def _add_products(builder: Any, factors: list[Any], index: Any, vector: Any, sums: list[Any]) -> None:
    """Add to each sum the vector times that row's factor at the index."""
    for total, place in zip(sums, factors, strict=True):
        factor = _spread(builder, builder.load(builder.gep(place, [index])))
        builder.store(_multiply_add(builder, factor, vector, builder.load(total)), total)


def _weigh(typing_context: Any, rows: Any, row: Any) -> tuple[Any, Kernel]:
    """weigh(rows, row): one step of a row's running softmax, in powers of two. Returns the shrinkage.

    Its scores become weights 2^(score - largest), LARGEST and SUMS are brought up to date. What was summed before is to be
    multiplied with the shrinkage.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = _array(context, builder, signature, arguments, 0)
        row = arguments[1]
        places = [_item(builder, rows, row, row.type(SCORES + i)) for i in range(0, KEY_TILE, LANES)]
        largest_at, sums_at = _item(builder, rows, row, row.type(LARGEST)), _item(builder, rows, row, row.type(SUMS))
        scores = [_load(builder, place) for place in places]
        before = _spread(builder, builder.load(largest_at))
        now = _larger(builder, before, _largest_lane(builder, _fold(builder, scores, _larger)))
        shrinkage = _exp2(builder, builder.fsub(before, now))
        weights = [_exp2(builder, builder.fsub(score, now)) for score in scores]
        for weight, place in zip(weights, places, strict=True):
            _store(builder, weight, place)
        added = _fold(builder, weights, lambda builder, a, b: builder.fadd(a, b))
        _store(builder, _multiply_add(builder, _load(builder, sums_at), shrinkage, added), sums_at)
        builder.store(builder.extract_element(now, _INT(0)), largest_at)
        return builder.extract_element(shrinkage, _INT(0))

    return types.float32(rows, types.intp), generate


weigh: Kernel = intrinsic(_weigh)


def _exp2(builder: Any, x: Any) -> Any:
    """2^x in every lane, for x up to 0: an integer goes into the exponent, the rest into a polynomial. NaN stays NaN."""
    rounding = _constant(_ROUNDING)
    shifted = builder.fadd(x, rounding)
    rest = builder.fsub(x, builder.fsub(shifted, rounding))
    power = _constant(_EXP2_COEFFICIENTS[-1])
    for coefficient in reversed(_EXP2_COEFFICIENTS[:-1]):
        power = _multiply_add(builder, power, rest, _constant(coefficient))
    exponent = builder.shl(builder.bitcast(shifted, _INTS), _INTS([_MANTISSA_BITS] * LANES))
    scale = builder.bitcast(builder.add(exponent, _INTS([_ONE_BITS] * LANES)), _FLOATS)
    is_nothing = builder.fcmp_ordered("<", x, _constant(_SMALLEST_EXPONENT))
    return builder.select(is_nothing, _constant(0.0), builder.fmul(power, scale))


def _largest_lane(builder: Any, vector: Any) -> Any:
    """The largest number in every lane."""
    distance = LANES // 2
    while distance:
        others = _INTS([lane ^ distance for lane in range(LANES)])
        vector = _larger(builder, vector, builder.shuffle_vector(vector, vector, others))
        distance //= 2
    return vector


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _fold(builder: Any, vectors: list[Any], combine: Callable[[Any, Any, Any], Any]) -> Any:
    """All vectors combined, in pairs."""
    while len(vectors) > 1:
        vectors = [combine(builder, vectors[i], vectors[i + 1]) for i in range(0, len(vectors), 2)]
    return vectors[0]


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c; rounded once on CPUs that can."""
    function = builder.module.declare_intrinsic(f"llvm.fmuladd.v{LANES}f32", (), ir.FunctionType(_FLOATS, [_FLOATS] * 3))
    return builder.call(function, [a, b, c])


def _constant(number: float) -> Any:
    return _FLOATS([number] * LANES)


def _spread(builder: Any, number: Any) -> Any:
    """The number in every lane."""
    first = builder.insert_element(_FLOATS(ir.Undefined), number, _INT(0))
    return builder.shuffle_vector(first, _FLOATS(ir.Undefined), _INTS([0] * LANES))


def _array(context: Any, builder: Any, signature: Any, arguments: Any, i: int) -> Any:
    return context.make_array(signature.args[i])(context, builder, arguments[i])


def _item(builder: Any, matrix: Any, row: Any, column: Any, more_rows: int = 0) -> Any:
    """Where matrix[row + more_rows, column] is. Rows lie one behind the other."""
    width = builder.extract_value(matrix.shape, 1)
    return builder.gep(matrix.data, [builder.add(builder.mul(builder.add(row, row.type(more_rows)), width), column)])


def _load(builder: Any, place: Any) -> Any:
    return builder.load(builder.bitcast(place, _FLOATS.as_pointer()), align=_ITEM_BYTES)


def _store(builder: Any, vector: Any, place: Any) -> None:
    builder.store(vector, builder.bitcast(place, _FLOATS.as_pointer()), align=_ITEM_BYTES)
