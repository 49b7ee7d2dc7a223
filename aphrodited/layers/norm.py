"""Normalisation over the last dimension. Every row is computed by itself, with the same bits in any batch."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_PARALLEL_VALUES = 131_072  # fewer are normalised in less time than it takes to wake a second thread


@cache
def _kernels() -> ModuleType | None:
    """Imported late: where they are kept is settled by the first PagedAttention, which also warns if there are none."""
    try:
        from aphrodited.layers import norm_kernels
    except ImportError:
        return None
    return norm_kernels


def compile_kernels() -> None:
    """Run every kernel once, so that the first engine after an installation starts at once."""
    weight = torch.ones(8)
    for norm in (RMSNorm(weight, 1e-5), LayerNorm(weight, weight, 1e-5)):
        norm(torch.ones(1, 8))
        norm(torch.ones(MIN_PARALLEL_VALUES // 8, 8))
    QKNorm(weight, weight, 1, 1, 1e-5)(torch.ones(1, 24))


class RMSNorm:
    """x / sqrt(mean(x²) + eps) * weight for x [R, E]. Source: https://arxiv.org/abs/1910.07467"""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight  # [E]
        self.eps = eps
        self._kernels = _kernels_for(weight)

    def __call__(self, x: Tensor) -> Tensor:
        if self._kernels is None:
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        result = torch.empty_like(x)
        arguments = x.numpy(), self.weight.numpy(), self.eps, result.numpy()
        if x.numel() < MIN_PARALLEL_VALUES:
            self._kernels.normalize(*arguments)
        else:
            self._kernels.normalize_parallel(*arguments, torch.get_num_threads())
        return result


class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias for x [R, E]. Source: https://arxiv.org/abs/1607.06450"""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        self.weight = weight  # [E]
        self.bias = bias  # [E]
        self.eps = eps
        self._kernels = _kernels_for(weight)

    def __call__(self, x: Tensor) -> Tensor:
        if self._kernels is None:
            return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)
        result = torch.empty_like(x)
        arguments = x.numpy(), self.weight.numpy(), self.bias.numpy(), self.eps, result.numpy()
        if x.numel() < MIN_PARALLEL_VALUES:
            self._kernels.center(*arguments)
        else:
            self._kernels.center_parallel(*arguments, torch.get_num_threads())
        return result


class QKNorm:
    """RMSNorm of every query head and every key head by itself. Source: https://arxiv.org/abs/2505.09388 (Qwen3)"""

    def __init__(self, query_weight: Tensor, key_weight: Tensor, num_heads: int, num_kv_heads: int, eps: float) -> None:
        self.weight = torch.cat((query_weight.expand(num_heads, -1), key_weight.expand(num_kv_heads, -1)))  # [H + K, D]
        self.eps = eps
        self._kernels = _kernels_for(query_weight)

    def __call__(self, qkv: Tensor) -> Tensor:
        """qkv [R, (H + 2K) D], its queries and keys normalised in place."""
        num_normed, size = self.weight.shape
        if self._kernels is not None:
            self._kernels.normalize_heads(qkv.numpy(), self.weight.numpy(), self.eps)
            return qkv
        heads = qkv.view(qkv.shape[0], -1, size)[:, :num_normed]  # [R, H + K, D]
        heads.copy_(F.rms_norm(heads, (size,), None, self.eps).mul_(self.weight))
        return qkv


def _kernels_for(weight: Tensor) -> ModuleType | None:
    return _kernels() if weight.device.type == "cpu" and weight.dtype == torch.float32 else None
