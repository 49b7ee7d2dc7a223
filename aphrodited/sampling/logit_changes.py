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
    """Change contiguous logits [R, V] in place, one SamplingRow for each row."""
    _penalise(logits, [(i, row) for i, row in enumerate(rows) if row.rules is not None and row.rules.counts is not None])
    _bias(logits, [(i, row) for i, row in enumerate(rows) if row.rules is not None and len(row.rules.bias)])
    _restrict(logits, [(i, row) for i, row in enumerate(rows) if row.allowed is not None])
    _forbid(logits, rows)


def _penalise(logits: Tensor, rows: list[tuple[int, SamplingRow]]) -> None:
    if not rows:
        return
    seen = [row.rules.counts for _, row in rows if row.rules is not None and row.rules.counts is not None]
    lengths = [len(counts.ids) for counts in seen]
    counts = np.concatenate([each.counts for each in seen])

    def spread(values: list[float]) -> NDArray[np.float32]:
        return np.repeat(np.array(values, dtype=np.float32), lengths)

    frequency = spread([row.params.frequency_penalty for _, row in rows]) * counts
    presence = spread([row.params.presence_penalty for _, row in rows]) * (counts > 0)
    repetition = torch.from_numpy(spread([row.params.repetition_penalty for _, row in rows])).to(logits.device)
    places = _places(logits, [i for i, _ in rows], [each.ids for each in seen])
    flat = logits.view(-1)
    values = flat[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= torch.from_numpy(frequency).to(logits.device)
    values -= torch.from_numpy(presence).to(logits.device)
    flat.scatter_(0, places, values)


def _bias(logits: Tensor, rows: list[tuple[int, SamplingRow]]) -> None:
    if not rows:
        return
    rules = [row.rules for _, row in rows if row.rules is not None]
    places = _places(logits, [i for i, _ in rows], [each.bias_ids for each in rules])
    bias = torch.from_numpy(np.concatenate([each.bias for each in rules])).to(logits.device)
    flat = logits.view(-1)
    flat.scatter_(0, places, flat[places] + bias)


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


def _places(logits: Tensor, row_ids: list[int], token_ids: list[NDArray[np.int64]]) -> Tensor:
    """Where in the flat logits each row's tokens are; none is named twice."""
    places = np.concatenate([ids + row * logits.shape[1] for row, ids in zip(row_ids, token_ids, strict=True)])
    return torch.from_numpy(places).to(logits.device)
