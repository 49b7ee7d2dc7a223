"""Choosing tokens on the CPU, by kernels that take each row of logits from memory once. What they choose is `sampling.draw`'s."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from aphrodited.sampling.sampled import SamplingRow

MIN_PARALLEL_LOGITS = 100_000  # fewer are looked through in less time than it takes to wake a second thread


@cache
def choice_kernels() -> ModuleType | None:
    """Imported late, as in layers.norm; None without numba."""
    try:
        from aphrodited.layers import choice_kernels
    except ImportError:
        return None
    return choice_kernels


def choose_by_kernels(kernels: ModuleType, logits: Tensor, rows: Sequence[SamplingRow], greedy: Sequence[bool]) -> Tensor:
    """A token for each row without top_k, and the most likely one of each greedy row.

    logits: [R, V].  Returns [R]; negative for a row with NaN or inf, or without any finite logit.
    """
    chosen = np.empty(len(rows), np.int64)
    kernels.choose(
        torch.get_num_threads() if len(rows) > 1 and logits.numel() >= MIN_PARALLEL_LOGITS else 1,
        logits.numpy(),
        np.array([0.0 if g else row.params.temperature for row, g in zip(rows, greedy, strict=True)]),
        np.array([row.params.top_p for row in rows]),
        np.array([row.params.min_p for row in rows]),
        np.array([row.seed for row in rows], np.uint64),
        np.array([row.position for row in rows], np.uint64),
        chosen,
    )
    return torch.from_numpy(chosen)
