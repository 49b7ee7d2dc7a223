"""TokenCounts: which tokens a sequence holds and how often each was generated, kept up token by token.

Two arrays of as many entries as there are distinct tokens, so that a step reads them whole and walks over no history.
Plain numpy: knows no tensors and no penalties.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

_FIRST_CAPACITY = 64


class TokenCounts:
    """Of one sequence: its prompt's tokens, seen but not counted, and its output's."""

    def __init__(self, prompt: array[int], output: array[int]) -> None:
        seen, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
        only_in_prompt = np.setdiff1d(np.asarray(prompt, dtype=np.int64), seen)
        self._size = len(seen) + len(only_in_prompt)
        capacity = self._size + _FIRST_CAPACITY
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._counts = np.zeros(capacity, dtype=np.float32)
        self._ids[: self._size] = np.concatenate((seen, only_in_prompt))
        self._counts[: len(seen)] = counts
        self._index = {token_id: index for index, token_id in enumerate(self._ids[: self._size].tolist())}

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens; valid until the next `add`."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each of `ids` was generated; 0 for those of the prompt alone."""
        return self._counts[: self._size]

    def add(self, token_id: int) -> None:
        """Count one generated token."""
        index = self._index.get(token_id)
        if index is None:
            index = self._index[token_id] = self._size
            if index == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[index] = token_id
            self._size += 1
        self._counts[index] += 1
