"""What tiles of products are written in: LLVM code for places in matrices and for vectors. Knows no instruction and no layout."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

_BYTE, _INDEX = ir.IntType(8), ir.IntType(32)


def place(builder: Any, matrix: Any, row: Any, offset: Any) -> Any:
    """So many bytes behind the start of the row."""
    stride = builder.extract_value(matrix.strides, 0)
    return move(builder, matrix.data, builder.add(builder.mul(row, stride), offset))


def move(builder: Any, pointer: Any, num_bytes: Any) -> Any:
    return builder.gep(builder.bitcast(pointer, _BYTE.as_pointer()), [num_bytes])


def load(builder: Any, pointer: Any, kind: Any) -> Any:
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)


def store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=1)


def spread(builder: Any, item: Any, vector: Any) -> Any:
    """The item in every lane."""
    nothing = vector(ir.Undefined)
    first = builder.insert_element(nothing, item, _INDEX(0))
    return builder.shuffle_vector(first, nothing, ir.VectorType(_INDEX, vector.count)([0] * vector.count))
