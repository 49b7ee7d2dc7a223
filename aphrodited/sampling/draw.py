"""Choosing an index from weights: argmax, inverse CDF, nucleus (top_p), best candidates (top_k).

No full sort anywhere. Rows are cut into chunks of CHUNK columns, and every sum is first one over a chunk: that is
fast, and its rounding does not depend on how many rows stand beside it. Knows no sampling parameters by name but
their tensors; where u comes from is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK = 128  # columns; divides the vocabularies of the usual models, others are padded


def _chunked(rows: Tensor, fill: float) -> Tensor:
    """[R, V] as [R, C, CHUNK], padded with `fill` if CHUNK does not divide V."""
    num_rows, width = rows.shape
    if width % CHUNK:
        rows = torch.nn.functional.pad(rows, (0, -width % CHUNK), value=fill)
    return rows.view(num_rows, -1, CHUNK)


def argmax(logits: Tensor) -> Tensor:
    """The lowest index of each row's largest value: [R, V] -> [R]. NaN counts as the largest."""
    chunks = _chunked(logits, -torch.inf)  # [R, C, CHUNK]
    chunk = chunks.amax(-1).argmax(-1)  # [R]
    rows = torch.arange(len(chunk), device=logits.device)
    return chunk * CHUNK + chunks[rows, chunk].argmax(-1)


def _invert(cdf: Tensor, target: Tensor) -> Tensor:
    """First index whose cumulative weight exceeds target, never one of weight 0.  cdf: [R, n], target: [R] -> [R]."""
    last = (cdf < cdf[:, -1:]).sum(-1)  # where the total is reached: the last index with a weight
    return torch.minimum((cdf <= target[:, None]).sum(-1), last)


def draw(weights: Tensor, u: Tensor) -> Tensor:
    """An index in proportion to its weight, by inverse CDF.

    weights: [R, V] >= 0, not all 0, of any total.  u: [R] float64 in [0, 1).  Returns [R].
    """
    chunks = _chunked(weights, 0.0)  # [R, C, CHUNK]
    sums = chunks.sum(-1).double()  # [R, C]
    cdf = sums.cumsum(-1)
    target = u * cdf[:, -1]
    chunk = _invert(cdf, target)
    rows = torch.arange(len(chunk), device=weights.device)
    before = cdf[rows, chunk] - sums[rows, chunk]
    inner = chunks[rows, chunk].double().cumsum(-1)  # [R, CHUNK]
    return chunk * CHUNK + _invert(inner, (target - before).clamp_(min=0.0))


def _row_sums(rows: Tensor) -> Tensor:
    return _chunked(rows, 0.0).sum(-1).double().cumsum(-1)[:, -1]


def draw_nucleus(probs: Tensor, top_p: Tensor, u_of: Callable[[Tensor, int], Tensor]) -> Tensor:
    """An index from the smallest set of the most likely ones whose mass reaches top_p; equal ones enter together.

    By rejection: a draw belongs to the nucleus if less than top_p of the mass lies above it; if not, nothing at or
    below it belongs either, and the next draw is among what lies above. Exact, and needs no order.

    probs: [R, V], before filters summing to 1 (weights already set to 0 are fine if they were the smallest).
    top_p: [R] float64.  u_of(rows [r], n): uniforms [r] for try n of these rows.  Returns [R].
    """
    chosen = torch.empty(len(probs), dtype=torch.int64, device=probs.device)
    pending = torch.arange(len(probs), device=probs.device)
    weights = probs
    for attempt in range(probs.shape[1]):
        index = draw(weights, u_of(pending, attempt))
        chosen[pending] = index
        undecided = (top_p[pending] < 1.0).nonzero()[:, 0]  # all of 1.0 is every index
        if not len(undecided):
            break
        pending, index, weights = pending[undecided], index[undecided], weights[undecided]
        above = torch.where(weights > weights.gather(1, index[:, None]), weights, 0.0)
        rejected = (_row_sums(above) >= top_p[pending]).nonzero()[:, 0]
        if not len(rejected):
            break
        pending, weights = pending[rejected], above[rejected]
    return chosen


def draw_candidates(
    logits: Tensor, num_candidates: int, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, u: Tensor
) -> Tensor:
    """An index among the top_k largest, then top_p of their mass, then min_p of the largest.

    logits: [R, V].  num_candidates >= every top_k; it must depend on a row's own parameters only, because it
    decides the order of equal logits.  The others: [R], float64 but top_k.  Returns [R].
    """
    values, indices = logits.topk(num_candidates, dim=-1)  # [R, n], largest first
    weights = ((values - values[:, :1]).double() / temperature[:, None]).exp()
    rank = torch.arange(num_candidates, device=logits.device)
    weights = torch.where(rank < top_k[:, None], weights, 0.0)
    cdf = weights.cumsum(-1)
    outside = (cdf - weights >= top_p[:, None] * cdf[:, -1:]) | (weights < min_p[:, None])
    outside[:, 0] = False
    cdf = weights.masked_fill(outside, 0.0).cumsum(-1)
    return indices.gather(1, _invert(cdf, u * cdf[:, -1])[:, None])[:, 0]
