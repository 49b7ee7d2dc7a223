"""Pooler: one sequence's embedding, from its hidden states as the steps compute them. Knows no model and no torch.

Everything is summed in float64 and in the order of the tokens, so that an embedding's bits depend neither on the chunks
that its prompt was cut into nor on what else was in the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from aphrodited.request import Pooling

Rows = NDArray[np.float64]


class Pooled(NamedTuple):
    """One finished embedding as TokenOutput.embedding wants it; None if it holds NaN or infinity."""

    data: bytes | None


class Pooler:
    """One sequence's; the engine's thread calls it."""

    def __init__(self, pooling: Pooling, *, normalize: bool) -> None:
        self.needs_every_token = pooling is Pooling.MEAN
        self._normalize = normalize
        self._sum: Rows | None = None  # [E]
        self._num_tokens = 0

    def take(self, hidden: Rows, start: int) -> None:
        """Take in the hidden states [T, E] of the tokens from `start` on, which are overwritten.

        Unless needs_every_token, those of the prompt's last token are enough. A sequence that was preempted begins
        again with start 0.
        """
        if start == 0 or not self.needs_every_token:
            self._sum, self._num_tokens = None, 0
        if not self.needs_every_token:
            hidden = hidden[-1:]
        if self._sum is not None:
            hidden[0] += self._sum
        self._sum = np.cumsum(hidden, axis=0, out=hidden)[-1].copy()  # one after the other, unlike sum
        self._num_tokens += len(hidden)

    def finish(self) -> Pooled:
        """The embedding of everything taken in."""
        assert self._sum is not None
        return pooled(self._sum / self._num_tokens, normalize=self._normalize)


def pooled(vector: Rows, *, normalize: bool) -> Pooled:
    """The vector [E] as an embedding. Zero stays zero."""
    if normalize:
        length = np.sqrt(np.square(vector).sum())
        vector = vector / length if length > 0 else vector
    numbers = vector.astype("<f4")
    return Pooled(numbers.tobytes() if np.isfinite(numbers).all() else None)
