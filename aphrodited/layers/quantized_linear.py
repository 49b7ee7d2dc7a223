"""Linear projections over int8 weights: a quarter of the bytes, and two to three times as fast as float32 (fbgemm, VNNI).

Weights have one scale for each output, activations one for each row, taken when it comes: a row's numbers must not
depend on its neighbours. So rows are first stretched to [-1, 1], see `quantization_kernels`, and the product is told that
fixed range instead of searching one over all of them. What it then sums are integers, which is exact in any order.
Knows no names, files or models.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from aphrodited.layers.linear import Activation, activate, is_row_exact

ENGINE = "fbgemm"
MIN_PARALLEL_VALUES = 65_536  # fewer are stretched in less time than it takes to wake a second thread

_WEIGHT_LIMIT = 127  # largest magnitude of an int8 weight; -128 is left out to stay symmetric


def can_quantize() -> bool:
    """Whether this installation and CPU offer int8 products."""
    return ENGINE in torch.backends.quantized.supported_engines and find_spec("numba") is not None


def compile_kernels() -> None:
    """Run every kernel once, so that the first engine after an installation starts at once."""
    _Stretcher(8)(torch.ones(MIN_PARALLEL_VALUES // 8, 8))
    _Stretcher(8)(torch.ones(1, 8))


def _activation_limit() -> int:
    """Largest magnitude of a quantised activation.

    Without VNNI the CPU adds pairs of products in 16 bits, where 8-bit activations would overflow.
    """
    return 127 if torch.cpu._is_vnni_supported() else 63


@cache
def _kernels() -> ModuleType:
    """Imported late: where they are kept is settled by the first PagedAttention, see paged_attention.load_kernels."""
    from aphrodited.layers import quantization_kernels

    return quantization_kernels


class _Stretcher:
    """Multiplies rows with an orthogonal matrix, times a constant, and stretches each to [-1, 1]."""

    def __init__(self, num_channels: int) -> None:
        self.group = _kernels().group_size(num_channels)
        self._signs = _kernels().signs(num_channels)

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows [R, K] stretched, and what each must be multiplied with to undo that: [R, 1]."""
        stretched, scales = torch.empty_like(rows), rows.new_empty(rows.shape[0], 1)
        arrays = rows.numpy(), self._signs, self.group, stretched.numpy(), scales.numpy()
        if rows.numel() < MIN_PARALLEL_VALUES:
            _kernels().stretch(*arrays)
        else:
            _kernels().stretch_parallel(*arrays, torch.get_num_threads())
        return stretched, scales


class QuantizedLinear:
    """A Projection whose weight and activations are rounded to int8."""

    min_rows = 1  # integers are summed, so one row has its bits by itself too

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, activation: Activation = Activation.NONE) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._activation = activation
        self._limit = _activation_limit()
        self._stretcher = _Stretcher(self.in_features)
        stretched, scales = self._stretcher(weight.contiguous())
        self._weight = _pack(stretched, scales / self._stretcher.group)  # rows and weight both bring the constant along

    def is_exact(self) -> bool:
        return is_row_exact(self)

    def __call__(self, x: Tensor) -> Tensor:
        return activate(self._product(x), self._activation)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        return self._product(x).add_(other)

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        return self._product(x).mul_(other)

    def _product(self, x: Tensor) -> Tensor:
        stretched, scales = self._stretcher(x)
        result: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            stretched, 1.0 / self._limit, self._limit + 1, self._weight
        )
        result *= scales
        return result if self._bias is None else result.add_(self._bias)


def _pack(stretched: Tensor, scales: Tensor) -> object:
    """A weight of rows in [-1, 1], times their scales [out, 1], rounded to int8 and in the layout of fbgemm."""
    torch.backends.quantized.engine = ENGINE
    values = stretched.mul_(_WEIGHT_LIMIT).round_().to(torch.int8)
    row_scales = scales[:, 0].double() / _WEIGHT_LIMIT
    with warnings.catch_warnings():
        # Tensors of quantised types are deprecated since torch 2.13; fbgemm's products are to be had with no others.
        warnings.filterwarnings("ignore", message=r"torch\.quantize_per_tensor", category=UserWarning)
        rounded = torch._make_per_channel_quantized_tensor(values, row_scales, torch.zeros_like(row_scales, dtype=torch.int64), 0)
    return torch.ops.quantized.linear_prepack(rounded, None)
