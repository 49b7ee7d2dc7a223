"""Linear projections in the library of whatever device their weight is on: cuBLAS on a GPU. Knows no names, files or models."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from aphrodited.layers.linear import Activation, activate


class DeviceLinear:
    """A Projection in its weight's format, with tensors on its weight's device."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, activation: Activation = Activation.NONE) -> None:
        self.out_features, self.in_features = weight.shape
        self._weight = weight
        self._bias = bias
        self._activation = activation

    def is_exact(self) -> bool:
        return False  # the library chooses its way of summing by the number of rows

    def __call__(self, x: Tensor) -> Tensor:
        return activate(F.linear(x, self._weight, self._bias), self._activation)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias).add_(other)

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias).mul_(other)
