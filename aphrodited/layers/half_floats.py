"""Numbers of 16 bits for kernels, which know them by their bits: numba has no type for them on a CPU.

An array of keys or values is float32, or int16 with the bits of float16. Which one it is, is part of its type, so a kernel is
compiled once for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

Cache = NDArray[np.float32] | NDArray[np.int16]
"""Keys or values of one layer, by block and key head: [N, K, D, B] of keys, [N, K, B, D] of values."""

_HALF, _BITS, _FLOAT = ir.HalfType(), ir.IntType(16), ir.FloatType()


def converts_halves() -> bool:
    """Whether this CPU has instructions for it: on x86 F16C, which came before AVX2."""
    return bool(binding.get_host_cpu_features().get("f16c"))


def item_bytes(dtype: Any) -> int:
    """Bytes of a number of a Cache."""
    return int(dtype.bitwidth) // 8


def load_floats(builder: Any, dtype: Any, address: Any, count: int) -> Any:
    """Generates code that loads a vector of float32 from so many numbers of a Cache's dtype."""
    floats = ir.VectorType(_FLOAT, count)
    if dtype == types.float32:
        return builder.load(builder.inttoptr(address, floats.as_pointer()), align=item_bytes(dtype))
    halves = ir.VectorType(_HALF, count).as_pointer()
    return builder.fpext(builder.load(builder.inttoptr(address, halves), align=item_bytes(dtype)), floats)


def _narrow(typing_context: Any, number: Any, cache: Any) -> tuple[Any, Callable[..., Any]]:
    """narrow(number, cache): a float32 as the cache holds it, the nearest; infinite beyond 65,504 in float16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.return_type == types.float32:
            return arguments[0]
        return builder.bitcast(builder.fptrunc(arguments[0], _HALF), _BITS)

    return cache.dtype(types.float32, cache), generate


narrow: Callable[..., Any] = intrinsic(_narrow)
