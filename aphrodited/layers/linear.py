"""Linear projections over weights that oneDNN has packed once, at load.

Packed products are faster than `F.linear` (2 cores, AVX2: 95-142 against 45-110 GFLOP/s for 8-256 rows) and take
bias, activation, residual and gate along for free. One row's result has the same bits however many rows are beside
it, with one exception: oneDNN computes a single row in another order. So a flat batch never has a single row here:
callers hold to MIN_ROWS, see `pad_rows`. Knows no names, files or models.
"""

from __future__ import annotations

from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_ROWS = 2

_TRIED_ROWS = (MIN_ROWS, 3, 8, 33, 100)
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


def can_pack() -> bool:
    """Whether this torch build and CPU offer packed products."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def pad_rows(rows: Tensor) -> Tensor:
    """The rows [R, E], repeated up to MIN_ROWS if they are fewer; results beyond the first R are to be dropped."""
    num_rows = rows.shape[0]
    return rows if num_rows >= MIN_ROWS else rows.expand(MIN_ROWS, -1).contiguous()


class Linear:
    """activation(x @ weight.T + bias) for a weight [out, in]; x is [R, in] with R >= MIN_ROWS."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, activation: Activation = Activation.NONE) -> None:
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._activation = activation
        self._is_packed = can_pack()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS) if self._is_packed else weight

    def is_exact(self) -> bool:
        """Whether a row has the same bits beside any number of others: tried out on this CPU, not assumed."""
        if not self._is_packed:
            return False
        generator = torch.Generator().manual_seed(0)
        rows = torch.empty(_TRIED_ROWS[-1], self.in_features).normal_(generator=generator)
        result = self(rows)
        return all(torch.equal(self(rows[:n].contiguous()), result[:n]) for n in _TRIED_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        if not self._is_packed:
            return _activate(F.linear(x, self._weight, self._bias), self._activation)
        attribute, algorithm = _ONEDNN_ACTIVATIONS[self._activation]
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, attribute, [], algorithm)
        return result

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """x @ weight.T + bias + other: a projection back onto its residual stream. For layers without activation."""
        return self._combine(x, other, "add") if self._is_packed else self(x) + other

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        """(x @ weight.T + bias) * other: one half of a gated pair. For layers without activation."""
        return self._combine(x, other, "mul") if self._is_packed else self(x) * other

    def _combine(self, x: Tensor, other: Tensor, operation: str) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, self._bias, operation)
        return result


def _activate(x: Tensor, activation: Activation) -> Tensor:
    match activation:
        case Activation.NONE:
            return x
        case Activation.SILU:
            return F.silu(x)
        case Activation.GELU:
            return F.gelu(x)
        case Activation.GELU_TANH:
            return F.gelu(x, approximate="tanh")
