"""From token ids to rows of the hidden state."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


class Embedding(Protocol):
    """A table [V, E] that is only ever read by row, so it may stay on disk or quantised."""

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[T, E] in the model's format for int64 ids [T]."""
        ...

    def rows(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """The same for a few ids, newly allocated and in float32: torch's operations would take longer than all of numpy's."""
        ...


class DenseEmbedding:
    """A table in the format of its checkpoint, often mapped from the file; rows are widened when they are read."""

    def __init__(self, table: Tensor) -> None:
        self._table = table  # [V, E], any floating-point format

    def __call__(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self._table).float()

    def rows(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        if self._table.dtype == torch.bfloat16:
            return self(torch.from_numpy(token_ids)).numpy()  # numpy does not have it
        rows: NDArray[np.float32] = self._table.numpy()[token_ids].astype(np.float32)
        return rows


class DeviceEmbedding:
    """A table in the model's own format, on the model's device."""

    def __init__(self, table: Tensor) -> None:
        self._table = table  # [V, E]

    def __call__(self, token_ids: Tensor) -> Tensor:
        return F.embedding(token_ids, self._table)

    def rows(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return self(torch.from_numpy(token_ids).to(self._table.device)).float().cpu().numpy()
