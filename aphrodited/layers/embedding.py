"""From token ids to rows of the hidden state."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


class Embedding(ABC):
    """A table [V, E] that is only ever read by row, so it may stay on disk or quantised."""

    @abstractmethod
    def __call__(self, token_ids: Tensor) -> Tensor:
        """[T, E] in the model's format for int64 ids [T]."""

    def rows(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """The same for a few ids on the CPU, newly allocated. For a table that can be read without torch, whose operations take longer."""
        return self(torch.from_numpy(token_ids)).numpy()


class DenseEmbedding(Embedding):
    """A table in the format of its checkpoint, often mapped from the file; rows are widened when they are read."""

    def __init__(self, table: Tensor) -> None:
        self._table = table  # [V, E], any floating-point format

    def __call__(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self._table).float()

    def rows(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        if self._table.dtype == torch.bfloat16:
            return super().rows(token_ids)  # numpy does not have it
        rows: NDArray[np.float32] = self._table.numpy()[token_ids].astype(np.float32)
        return rows


class DeviceEmbedding(Embedding):
    """A table in the model's own format, on the model's device."""

    def __init__(self, table: Tensor) -> None:
        self._table = table  # [V, E]

    def __call__(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self._table)
