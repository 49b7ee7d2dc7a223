"""DeviceAttention: paged attention in place for tensors that are not the CPU kernels' float32. See `paged_attention`.

On a GPU the kernels are Triton's, which comes with torch's builds for CUDA; elsewhere the torch reference stands in, so
that everything around attention can be tried without a GPU. Knows one layer's tensors at a time and no model.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from aphrodited.errors import ConfigError
from aphrodited.layers import paged_attention_reference
from aphrodited.layers.attention import AttentionMetadata
from aphrodited.layers.paged_attention import UNLIMITED, AttentionPlan


class DeviceAttention:
    """An Attention on one device. Raises ConfigError on a GPU without Triton."""

    is_exact = False  # products and sums on a GPU depend on the batch

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        rotary: Tensor,
        cache_dir: Path | None = None,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.device = device
        self.dtype = self.cache_dtype = dtype
        self._scale = float(head_dim**-0.5)
        self._rotary = rotary.to(device)  # [P, R] float32
        self._kernels = load_device_kernels(device)

    @property
    def kernel(self) -> str:
        return f"triton {version('triton')}" if self._kernels is not paged_attention_reference else "torch"

    def plan(self, metadata: AttentionMetadata) -> AttentionPlan:
        """Nothing is worked out ahead: the kernels find their rows by themselves."""
        return AttentionPlan(metadata, np.empty((0, 3), np.int32), 1)

    def __call__(
        self, qkv: Tensor, kv_cache: tuple[Tensor, Tensor], plan: AttentionPlan, window: int | None = None
    ) -> Tensor:
        """Attention output [R, H D] for qkv [R, (H + 2K) D], which is overwritten; stores this step's keys and values.

        kv_cache: keys and values, [N, K, B, D] each.  window: how many keys a row sees, its own included; None for all.
        Rows beyond the T of the plan are padding: zeros.
        """
        key_cache, value_cache = kv_cache
        num_kv_heads, _, head_dim = key_cache.shape[1:]
        output = qkv.new_zeros(qkv.shape[0], qkv.shape[1] - 2 * num_kv_heads * head_dim)
        metadata = plan.metadata
        num_tokens = metadata.positions.shape[0]
        self._kernels.rotate_and_store(qkv[:num_tokens], self._rotary, metadata, key_cache, value_cache)
        self._kernels.attend(qkv, metadata, key_cache, value_cache, window or UNLIMITED, self._scale, output)
        return output


def load_device_kernels(device: torch.device) -> ModuleType:
    """The kernels for a kind of device. Raises ConfigError if Triton is missing on a GPU."""
    if device.type != "cuda":
        return paged_attention_reference
    try:
        from aphrodited.layers import paged_attention_triton
    except ImportError as error:
        raise ConfigError(
            f"{device}: its attention kernels need Triton ({error}); install a build of torch for CUDA on Linux, which"
            " brings it along, or set device to cpu"
        ) from None
    return paged_attention_triton
