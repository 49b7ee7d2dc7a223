"""Linear projections over int8 weights: two to three times as fast as float32 (fbgemm, VNNI).

Weights have one scale for each output, activations one for each row, taken when it comes: a row's numbers must not
depend on its neighbours. So rows are rounded to integers here, see `quantization_kernels`, and the product is told their
fixed range instead of searching one over all of them. What it then sums are integers, which is exact in any order.

A single row, one stream's decoding, is only about reading the weight: one thread that is awake does that faster than two
that wait for each other. Knows no names, files or models.
"""

from __future__ import annotations

from functools import cache, cached_property
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

from aphrodited.layers.int8_weight import ENGINE, Int8Weight, PackingThread
from aphrodited.layers.linear import Activation, activate, is_row_exact

MIN_PARALLEL_VALUES = 65_536  # fewer are rounded in less time than it takes to wake a second thread
MIN_PARALLEL_WEIGHTS = 4 * 1024**2  # fewer are multiplied with one row in less time than that (10 us, 20 GB/s)

_WEIGHT_LIMIT = 127  # largest magnitude of an int8 weight; -128 is left out to stay symmetric


def can_quantize() -> bool:
    """Whether this installation and CPU offer int8 products."""
    return ENGINE in torch.backends.quantized.supported_engines and find_spec("numba") is not None


def compile_kernels() -> None:
    """Run every kernel once, so that the first engine after an installation starts at once."""
    quantizer = _Quantizer(8, 127)
    quantizer(torch.ones(MIN_PARALLEL_VALUES // 8, 8))
    for num_outputs in (1, MIN_PARALLEL_WEIGHTS // 8):
        QuantizedLinear(torch.ones(num_outputs, 8))(torch.ones(1, 8))


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


class _Quantizer:
    """Rounds rows of K channels, multiplied with an orthogonal matrix times the root of `group`, to integers."""

    def __init__(self, num_channels: int, limit: int) -> None:
        self.group = _kernels().group_size(num_channels)
        self._signs = _kernels().signs(num_channels)
        self._limit = float(limit)

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Integers from -limit to limit for the rows [R, K], still as floats, and what a step of each row is: [R, 1]."""
        values, steps = torch.empty_like(rows), rows.new_empty(rows.shape[0], 1)
        arguments = rows.numpy(), self._signs, self.group, self._limit, values.numpy(), steps.numpy()
        if rows.numel() < MIN_PARALLEL_VALUES:
            _kernels().quantize(*arguments)
        else:
            _kernels().quantize_parallel(*arguments, torch.get_num_threads())
        return values, steps

    def multiply_row(self, row: Tensor, weight: Int8Weight) -> Tensor:
        """The row [1, K] quantised, times the weight [out, K]: [1, out]."""
        result = row.new_empty(1, weight.rows.shape[0])
        is_large = weight.rows.size >= MIN_PARALLEL_WEIGHTS
        multiply = _kernels().multiply_row_parallel if is_large else _kernels().multiply_row
        multiply(
            row.numpy()[0],
            self._signs,
            self.group,
            self._limit,
            weight.rows,
            weight.steps,
            torch.get_num_threads() if is_large else 1,
            result.numpy()[0],
        )
        return result


class QuantizedLinear:
    """A Projection whose weight and activations are rounded to int8. Weights of one model share a PackingThread."""

    min_rows = 1  # integers are summed, so one row has its bits by itself too

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: Activation = Activation.NONE,
        packing: PackingThread | None = None,
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._activation = activation
        self._limit = _activation_limit()
        values, steps = _Quantizer(self.in_features, _WEIGHT_LIMIT)(weight.contiguous())
        self._quantizer = _Quantizer(self.in_features, self._limit)
        steps = steps[:, 0] / self._quantizer.group  # a root of it is in the weight and one in each row
        self._await_weight = (packing or PackingThread()).submit(values.to(torch.int8), steps)

    @cached_property
    def _weight(self) -> Int8Weight:
        return self._await_weight()

    def is_exact(self) -> bool:
        return is_row_exact(self)

    def __call__(self, x: Tensor) -> Tensor:
        return activate(self._product(x), self._activation)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        return self._product(x).add_(other)

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        return self._product(x).mul_(other)

    def _product(self, x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            result = self._quantizer.multiply_row(x, self._weight)
        else:
            values, steps = self._quantizer(x)
            result = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                values, 1.0, self._limit + 1, self._weight.packed
            )
            result *= steps
        return result if self._bias is None else result.add_(self._bias)
