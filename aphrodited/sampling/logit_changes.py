"""Changes logits as the rows' rules say, in this order:

    repetition_penalty    of tokens in the prompt or the output
    frequency_penalty,
    presence_penalty      of tokens in the output
    logit_bias
    allowed tokens        by allowed_token_ids, bad words and a grammar
    forbidden tokens      what would end a sequence too early, or complete a bad word

All rows at once; each logit is changed by its own row's numbers alone, so a row's result does not depend on its
neighbours. Rows without rules are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.sampling.bitmask import unpacked
from aphrodited.sampling.sampled import SamplingRow


def change_logits(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Change logits [R, V] in place, one SamplingRow for each row."""
    _penalise(logits, [(i, row) for i, row in enumerate(rows) if row.rules is not None and row.rules.counts is not None])
    _bias(logits, [(i, row) for i, row in enumerate(rows) if row.rules is not None and len(row.rules.bias)])
    _restrict(logits, [(i, row) for i, row in enumerate(rows) if row.allowed is not None])
    _forbid(logits, rows)


def _penalise(logits: Tensor, rows: list[tuple[int, SamplingRow]]) -> None:
    if not rows:
        return
    all_counts = [row.rules.counts for _, row in rows if row.rules is not None and row.rules.counts is not None]
    lengths = [len(counts.ids) for counts in all_counts]

    def spread(values: list[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), lengths)).to(logits.device)

    row_ids, token_ids = _places(rows, lengths, [counts.ids for counts in all_counts], logits)
    counts = torch.from_numpy(np.concatenate([counts.counts for counts in all_counts])).to(logits.device)
    repetition = spread([row.params.repetition_penalty for _, row in rows])
    frequency = spread([row.params.frequency_penalty for _, row in rows])
    presence = spread([row.params.presence_penalty for _, row in rows])
    values = logits[row_ids, token_ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * counts
    values -= torch.where(counts > 0, presence, 0.0)
    logits[row_ids, token_ids] = values


def _bias(logits: Tensor, rows: list[tuple[int, SamplingRow]]) -> None:
    if not rows:
        return
    rules = [row.rules for _, row in rows if row.rules is not None]
    row_ids, token_ids = _places(rows, [len(r.bias) for r in rules], [r.bias_ids for r in rules], logits)
    logits[row_ids, token_ids] += torch.from_numpy(np.concatenate([r.bias for r in rules])).to(logits.device)


def _restrict(logits: Tensor, rows: list[tuple[int, SamplingRow]]) -> None:
    if not rows:
        return
    row_ids = [i for i, _ in rows]
    allowed = unpacked([row.allowed for _, row in rows if row.allowed is not None], logits.shape[1])
    outside = torch.from_numpy(~allowed).to(logits.device)  # [r, V]
    if len(row_ids) == len(logits):
        logits.masked_fill_(outside, -torch.inf)
    else:
        logits[row_ids] = logits[row_ids].masked_fill_(outside, -torch.inf)


def _forbid(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    row_ids = [i for i, row in enumerate(rows) for _ in row.forbidden_token_ids]
    if row_ids:
        logits[row_ids, [token_id for row in rows for token_id in row.forbidden_token_ids]] = -torch.inf


def _places(
    rows: list[tuple[int, SamplingRow]], lengths: list[int], token_ids: list[NDArray[np.int64]], like: Tensor
) -> tuple[Tensor, Tensor]:
    """The row and the token of each of sum(lengths) logits."""
    row_ids = np.repeat(np.array([i for i, _ in rows]), lengths)
    return torch.from_numpy(row_ids).to(like.device), torch.from_numpy(np.concatenate(token_ids)).to(like.device)
