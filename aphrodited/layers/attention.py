"""What a step tells attention about its flat batch. Knows neither sequences nor the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KVCache = tuple[Tensor, Tensor]
"""One layer's keys and values, [N, K, B, D] each."""


@dataclass(slots=True)
class AttentionMetadata:
    """Where the T rows of a flat batch of S sequences stand, and where their keys and values are kept.

    Sequence s owns the query rows cu_seqlens[s]:cu_seqlens[s + 1]; they are its last tokens, in order, and the keys
    of its tokens 0 … context_lens[s] - 1 are in the blocks of block_tables[s] once this step's are stored.
    """

    positions: Tensor  # [T] int64, of each row in its sequence
    slot_mapping: Tensor  # [T] int64, where each row's key and value go: block id x block size + offset; on a GPU also negative, nowhere
    block_tables: Tensor  # [S, M] int32, block ids in order; blocks out of its window and past its end are never read
    cu_seqlens: Tensor  # [S + 1] int32, first query row of each sequence, and T
    context_lens: Tensor  # [S] int32, keys visible to the sequence's last row, itself included
    max_query_len: int  # rows of the longest sequence in this batch


def as_key_cache(memory: Tensor) -> Tensor:
    """Contiguous memory [N, K, B, D] as a key cache of the same shape, for the CPU's kernels.

    In memory the B keys of a block lie side by side, dimension after dimension, so that one query's products with all of them
    are products of vectors.
    """
    num_blocks, num_kv_heads, block_size, head_dim = memory.shape
    return memory.view(num_blocks, num_kv_heads, head_dim, block_size).transpose(2, 3)


def as_numbers(cache: Tensor) -> NDArray[np.float32] | NDArray[np.int16]:
    """Keys or values as the CPU's kernels take them: float32, or the bits of float16."""
    numbers: NDArray[np.float32] | NDArray[np.int16] = (cache.view(torch.int16) if cache.dtype == torch.float16 else cache).numpy()
    return numbers
