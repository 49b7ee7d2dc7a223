"""KVCachePool: the memory of keys and values, one pair of tensors per layer. Knows no owner of any block."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from aphrodited.errors import ConfigError
from aphrodited.layers.attention import as_key_cache
from aphrodited.models.config import ModelArchitecture

CPU = torch.device("cpu")


def kv_block_bytes(architecture: ModelArchitecture, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values together."""
    per_token = 2 * architecture.num_layers * architecture.num_kv_heads * architecture.head_dim
    return per_token * block_size * dtype.itemsize


class KVCachePool:
    """layers[i] is (k, v) of layer i, each [N, K, B, D]. Raises ConfigError if that is more than the system gives.

    On the CPU zeroed memory of the system, which becomes real when first written (torch.zeros would write all of it): an engine
    starts at once and stays small until it works. Small pages on purpose: a few short sequences touch a little of every
    layer, which in huge pages was 120 MB and seconds of page faults on a virtual machine.
    """

    def __init__(
        self,
        architecture: ModelArchitecture,
        *,
        num_blocks: int,
        block_size: int,
        device: torch.device = CPU,
        dtype: torch.dtype,
    ) -> None:
        shape = (num_blocks, architecture.num_kv_heads, block_size, architecture.head_dim)
        if device == CPU:
            memory = _reserve(num_blocks * kv_block_bytes(architecture, block_size, dtype))
            pool = torch.frombuffer(memory, dtype=dtype).view(architecture.num_layers, 2, *shape)
        else:
            pool = torch.zeros((architecture.num_layers, 2, *shape), dtype=dtype, device=device)
        lay_out = as_key_cache if device == CPU else lambda keys: keys
        self.layers: list[tuple[Tensor, Tensor]] = [(lay_out(keys), values) for keys, values in pool]


def _reserve(num_bytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        raise ConfigError(
            f"the system does not give {num_bytes} bytes for the KV cache: lower engine.kv_cache_memory"
        ) from None
