"""BatchTensors: a ScheduledBatch as the tensors a model reads. Built with numpy, no Python per token. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aphrodited.engine.scheduler import ScheduledBatch
from aphrodited.layers.attention import AttentionMetadata


@dataclass(slots=True)
class BatchTensors:
    """One step's input.

    input_ids: [T] int64.  logits_rows: [R] int64, the rows of the flat batch whose next token is wanted, in the
    order of the batch's entries; None if that is every row.
    """

    input_ids: Tensor
    metadata: AttentionMetadata
    logits_rows: Tensor | None

    @classmethod
    def build(cls, batch: ScheduledBatch, block_size: int, device: torch.device) -> BatchTensors:
        entries = batch.entries
        lengths = np.array([entry.num_tokens for entry in entries])  # [S]
        starts = np.array([entry.start for entry in entries])  # [S]
        cu_seqlens = np.concatenate(([0], lengths.cumsum()))  # [S + 1]
        input_ids = np.concatenate(
            [entry.sequence.token_ids[entry.start : entry.start + entry.num_tokens] for entry in entries]
        )  # [T]

        block_tables = np.zeros((len(entries), max(len(e.sequence.block_table) for e in entries)), dtype=np.int32)
        for row, entry in zip(block_tables, entries, strict=True):
            row[: len(entry.sequence.block_table)] = entry.sequence.block_table

        sequence_of_row = np.repeat(np.arange(len(entries)), lengths)  # [T]
        positions = np.arange(batch.num_tokens) + np.repeat(starts - cu_seqlens[:-1], lengths)  # [T]
        blocks = block_tables[sequence_of_row, positions // block_size].astype(np.int64)  # [T]

        samples = np.array([entry.samples for entry in entries])  # [S]
        last_rows = cu_seqlens[1:][samples] - 1  # [R]

        def to_device(values: np.ndarray) -> Tensor:
            tensor = torch.from_numpy(values)
            return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

        metadata = AttentionMetadata(
            positions=to_device(positions),
            slot_mapping=to_device(blocks * block_size + positions % block_size),
            block_tables=to_device(block_tables),
            cu_seqlens=to_device(cu_seqlens.astype(np.int32)),
            context_lens=to_device((starts + lengths).astype(np.int32)),
            max_query_len=int(lengths.max()),
        )
        is_every_row = len(last_rows) == batch.num_tokens
        return cls(to_device(input_ids), metadata, None if is_every_row else to_device(last_rows))
