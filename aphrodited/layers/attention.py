"""What a step tells attention about its flat batch. Knows neither sequences nor the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class AttentionMetadata:
    """Where the T rows of a flat batch of S sequences stand, and where their keys and values are kept.

    Sequence s owns the query rows cu_seqlens[s]:cu_seqlens[s + 1]; they are its last tokens, in order, and the keys
    of its tokens 0 … context_lens[s] - 1 are in the blocks of block_tables[s] once this step's are stored.
    """

    positions: Tensor  # [T] int64, of each row in its sequence
    slot_mapping: Tensor  # [T] int64, where each row's key and value go: block id x block size + offset; on a GPU also negative, nowhere
    block_tables: Tensor  # [S, M] int32, block ids in order; what lies past a sequence's last block is never read
    cu_seqlens: Tensor  # [S + 1] int32, first query row of each sequence, and T
    context_lens: Tensor  # [S] int32, keys visible to the sequence's last row, itself included
    max_query_len: int  # rows of the longest sequence in this batch
