"""Arrays of a kernel by the addresses of their first numbers, so that a table of addresses can say what a kernel reads.

Nothing is checked: whoever hands out an address keeps its array alive, contiguous and of that shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

from aphrodited.layers.half_floats import Cache
from aphrodited.layers.kernels import Bytes, Floats, Ints, compile_kernel


def _pointer(typing_context: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


pointer: Callable[..., Any] = intrinsic(_pointer)


_view: Callable[..., Any] = numba.carray  # type: ignore[attr-defined]


def _floats_at(address: int, size: int) -> Floats:
    floats: Floats = _view(pointer(address), size, np.float32)
    return floats


def _matrix_at(address: int, num_rows: int, num_columns: int) -> Floats:
    matrix: Floats = _view(pointer(address), (num_rows, num_columns), np.float32)
    return matrix


def _cache_at(address: int, num_blocks: int, num_heads: int, m: int, n: int, dtype: Any) -> Cache:
    cache: Cache = _view(pointer(address), (num_blocks, num_heads, m, n), dtype)
    return cache


def _ints_at(address: int, size: int) -> Ints:
    ints: Ints = _view(pointer(address), size, np.int32)
    return ints


def _bytes_at(address: int, num_rows: int, num_columns: int) -> Bytes:
    octets: Bytes = _view(pointer(address), (num_rows, num_columns), np.int8)
    return octets


floats_at = compile_kernel(_floats_at, set())
matrix_at = compile_kernel(_matrix_at, set())
cache_at = compile_kernel(_cache_at, set())
ints_at = compile_kernel(_ints_at, set())
bytes_at = compile_kernel(_bytes_at, set())
