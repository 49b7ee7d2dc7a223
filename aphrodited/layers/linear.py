"""Linear projections over weights that oneDNN has packed once, at load.

Packed products are faster than `F.linear` (2 cores, AVX2: 95-142 against 45-110 GFLOP/s for 8-256 rows) and take
bias, activation, residual and gate along for free. One row's result has the same bits however many rows are beside
it, with one exception: oneDNN computes a single row in another order. So a flat batch never has a single row here:
callers pad to `min_rows`, see `pad_rows`. Knows no names, files or models.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_TRIED_ROWS = (5, 8, 33, 100)
_PACK_ROWS = 64  # the batch size oneDNN is told to choose its weight layout for


class Activation(StrEnum):
    """What follows a projection, by the names checkpoints use (`hidden_act`)."""

    NONE = "none"
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_pytorch_tanh"


_ONEDNN_ACTIVATIONS = {  # attribute and algorithm of _linear_pointwise
    Activation.NONE: ("none", ""),
    Activation.SILU: ("swish", ""),
    Activation.GELU: ("gelu", "none"),
    Activation.GELU_TANH: ("gelu", "tanh"),
}


class Projection(Protocol):
    """activation(x @ weight.T + bias) for a weight [out, in]; x is [R, in] with R >= min_rows, float32."""

    in_features: int
    out_features: int
    min_rows: int

    def is_exact(self) -> bool:
        """Whether a row has the same bits beside any number of others: tried out on this CPU, not assumed."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """x @ weight.T + bias + other: a projection back onto its residual stream. For layers without activation."""
        ...

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        """(x @ weight.T + bias) * other: one half of a gated pair. For layers without activation."""
        ...


class MakeProjection(Protocol):
    """Linear or another class of projections."""

    def __call__(
        self, weight: Tensor, bias: Tensor | None = None, *, activation: Activation = Activation.NONE
    ) -> Projection: ...


def can_pack() -> bool:
    """Whether this torch build and CPU offer packed products."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pad_rows(rows: Tensor, min_rows: int) -> Tensor:
    """The rows [R, E], and zeros up to min_rows if they are fewer; results beyond the first R are to be dropped."""
    num_missing = min_rows - rows.shape[0]
    return F.pad(rows, (0, 0, 0, num_missing)) if num_missing > 0 else rows


class Linear:
    """A Projection in float32."""

    min_rows = 4  # reads its weight at 18-21 GB/s then, against 12-14 with one row or two (one thread, AVX-512)

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, activation: Activation = Activation.NONE) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._activation = activation
        self._is_packed = can_pack()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS) if self._is_packed else weight

    def is_exact(self) -> bool:
        return self._is_packed and is_row_exact(self)

    def __call__(self, x: Tensor) -> Tensor:
        if not self._is_packed:
            return activate(F.linear(x, self._weight, self._bias), self._activation)
        attribute, algorithm = _ONEDNN_ACTIVATIONS[self._activation]
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, attribute, [], algorithm)
        return result

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        return self._combine(x, other, "add") if self._is_packed else self(x) + other

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        return self._combine(x, other, "mul") if self._is_packed else self(x) * other

    def _combine(self, x: Tensor, other: Tensor, operation: str) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, self._bias, operation)
        return result


def is_row_exact(projection: Projection) -> bool:
    """Whether rows of random numbers gave the same bits beside few others and many."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.empty(_TRIED_ROWS[-1], projection.in_features).normal_(generator=generator)
    result = projection(rows)
    return all(torch.equal(projection(rows[:n].contiguous()), result[:n]) for n in (projection.min_rows, *_TRIED_ROWS))


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The activation of x, applied by itself."""
    match activation:
        case Activation.NONE:
            return x
        case Activation.SILU:
            return F.silu(x)
        case Activation.GELU:
            return F.gelu(x)
        case Activation.GELU_TANH:
            return F.gelu(x, approximate="tanh")
