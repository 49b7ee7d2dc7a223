"""A ScheduledBatch as what a model reads. Built with numpy, no Python per token of a prompt. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.engine.scheduler import ScheduledBatch
from aphrodited.layers.attention import AttentionMetadata
from aphrodited.layers.step_program import Places


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

        block_tables = _block_tables(batch)
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


def step_input(batch: ScheduledBatch, block_size: int) -> tuple[NDArray[np.int64], Places]:
    """The token ids of a batch with one token of each sequence, and their places."""
    rows = []
    for entry in batch.entries:
        sequence, position = entry.sequence, entry.start
        slot = sequence.block_table[position // block_size] * block_size + position % block_size
        rows.append((sequence.token_ids[position], position, slot))
    token_ids, positions, slots = np.array(rows, np.int64).T.copy()
    return token_ids, Places(positions, slots, _block_tables(batch))


def _block_tables(batch: ScheduledBatch) -> NDArray[np.int32]:
    """[S, M], zeros behind the end of each."""
    tables = [entry.sequence.block_table for entry in batch.entries]
    rows = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in zip(rows, tables, strict=True):
        row[: len(table)] = table
    return rows
