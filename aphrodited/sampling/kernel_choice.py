"""Choosing tokens on the CPU, by kernels that take each row of logits from memory once. What they choose is `sampling.draw`'s."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray

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


def choose_by_kernels(
    kernels: ModuleType, logits: NDArray[np.float32], rows: Sequence[SamplingRow], greedy: Sequence[bool]
) -> NDArray[np.int64]:
    """A token for each row without top_k, and the most likely one of each greedy row.

    logits: [R, V].  Returns [R]; negative for a row with NaN or inf, or without any finite logit.
    """
    limits = [
        (0.0 if is_greedy else row.params.temperature, row.params.top_p, row.params.min_p)
        for row, is_greedy in zip(rows, greedy, strict=True)
    ]
    chosen = np.empty(len(rows), np.int64)
    kernels.choose(
        torch.get_num_threads() if len(rows) > 1 and logits.size >= MIN_PARALLEL_LOGITS else 1,
        logits,
        np.array(limits),
        np.array([(row.seed, row.position) for row in rows], np.uint64),
        chosen,
    )
    return chosen
