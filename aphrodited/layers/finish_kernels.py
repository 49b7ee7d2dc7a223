"""What follows a product and its bias, row by row, for the kernels of all kinds of products."""

from __future__ import annotations

from aphrodited.layers.kernel_math import gelu, gelu_tanh, silu
from aphrodited.layers.kernels import Floats, compile_kernel

PLAIN, ADD, MULTIPLY, SILU, GELU, GELU_TANH = range(6)
"""Nothing, another tensor added, another tensor multiplied with, or a function."""


def _finish_row(kind: int, other: Floats, result: Floats) -> None:
    if kind == ADD:
        for j in range(result.shape[0]):
            result[j] += other[j]
    elif kind == MULTIPLY:
        for j in range(result.shape[0]):
            result[j] *= other[j]
    elif kind == SILU:
        for j in range(result.shape[0]):
            result[j] = silu(result[j])
    elif kind == GELU:
        for j in range(result.shape[0]):
            result[j] = gelu(result[j])
    elif kind == GELU_TANH:
        for j in range(result.shape[0]):
            result[j] = gelu_tanh(result[j])


finish_row = compile_kernel(_finish_row, set())
