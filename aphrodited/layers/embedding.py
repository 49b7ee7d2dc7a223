"""From token ids to rows of the hidden state."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor


class Embedding(Protocol):
    """A table [V, E] that is only ever read by row, so it may stay on disk or quantised."""

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[T, E] in the model's format for int64 ids [T]."""
        ...


class DenseEmbedding:
    """A table in the format of its checkpoint, often mapped from the file; rows are widened when they are read."""

    def __init__(self, table: Tensor) -> None:
        self._table = table  # [V, E], any floating-point format

    def __call__(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self._table).float()


class DeviceEmbedding:
    """A table in the model's own format, on the model's device."""

    def __init__(self, table: Tensor) -> None:
        self._table = table  # [V, E]

    def __call__(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self._table)
