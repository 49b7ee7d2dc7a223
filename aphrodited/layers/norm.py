"""Normalisation over the last dimension. Every row is computed by itself, with the same bits in any batch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


class RMSNorm:
    """x / sqrt(mean(x²) + eps) * weight. Source: https://arxiv.org/abs/1910.07467"""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight  # [E]
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self._weight, self._eps)


class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias. Source: https://arxiv.org/abs/1607.06450"""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        self._weight = weight  # [E]
        self._bias = bias  # [E]
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), self._weight, self._bias, self._eps)
