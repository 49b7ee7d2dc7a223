"""Linear projections over int8 weights: a quarter of the bytes, and more than twice as fast as float32 (fbgemm, VNNI).

Weights have one scale for each output, activations one for each row, taken when it comes: a row's numbers must not
depend on its neighbours. So rows are first stretched to [-1, 1], and the product is told that fixed range instead of
searching one over all of them. What it then sums are integers, which is exact in any order. Knows no names, files or models.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from aphrodited.layers.linear import Activation, activate, is_row_exact

ENGINE = "fbgemm"

_WEIGHT_LIMIT = 127  # largest magnitude of an int8 weight; -128 is left out to stay symmetric
_SMALLEST_SCALE = 1e-30  # a row of zeros stays zeros


def can_quantize() -> bool:
    """Whether this torch build and CPU offer int8 products."""
    return ENGINE in torch.backends.quantized.supported_engines


def _activation_limit() -> int:
    """Largest magnitude of a quantised activation.

    Without VNNI the CPU adds pairs of products in 16 bits, where 8-bit activations would overflow.
    """
    return 127 if torch.cpu._is_vnni_supported() else 63


class QuantizedLinear:
    """A Projection whose weight and activations are rounded to int8."""

    min_rows = 1  # integers are summed, so one row has its bits by itself too

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, activation: Activation = Activation.NONE) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._activation = activation
        self._limit = _activation_limit()
        self._weight = _pack(weight)

    def is_exact(self) -> bool:
        return is_row_exact(self)

    def __call__(self, x: Tensor) -> Tensor:
        return activate(self._product(x), self._activation)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        return self._product(x).add_(other)

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        return self._product(x).mul_(other)

    def _product(self, x: Tensor) -> Tensor:
        scales = x.abs().amax(-1, keepdim=True).clamp_min_(_SMALLEST_SCALE)  # [R, 1]
        result: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            x / scales, 1.0 / self._limit, self._limit + 1, self._weight
        )
        result *= scales
        return result if self._bias is None else result.add_(self._bias)


def _pack(weight: Tensor) -> object:
    """The weight [out, in] rounded to int8, one scale a row, in the layout of fbgemm."""
    torch.backends.quantized.engine = ENGINE
    scales = weight.abs().amax(1).clamp_min_(_SMALLEST_SCALE).div_(_WEIGHT_LIMIT)  # [out]
    zero_points = torch.zeros(len(scales), dtype=torch.int64)
    with warnings.catch_warnings():
        # Tensors of quantised types are deprecated since torch 2.13; fbgemm's products are to be had with no others.
        warnings.filterwarnings("ignore", message=r"torch\.quantize_per_tensor", category=UserWarning)
        rounded = torch.quantize_per_channel(weight, scales.double(), zero_points, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(rounded, None)
