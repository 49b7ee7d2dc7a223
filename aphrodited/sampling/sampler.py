"""Sampler: one token per row of logits, each by its own SamplingParams, all rows at once.

A row's token depends on its logits, its parameters and (seed, position), never on the rows beside it. Filters act in
the order temperature, top_k, top_p (of the mass that top_k left), min_p. Knows no sequences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.sampling.draw import argmax, draw_candidates, draw_nucleus
from aphrodited.sampling.kernel_choice import choice_kernels, choose_by_kernels
from aphrodited.sampling.logit_changes import change_logits
from aphrodited.sampling.logprobs import token_logprobs
from aphrodited.sampling.randomness import uniforms
from aphrodited.sampling.sampled import Sampled, SamplingRow

MIN_TEMPERATURE = 1e-5  # below, a lead of 0.001 in logits is e^100: greedy, without dividing by almost zero
MIN_CANDIDATES = 16


class Sampler:
    """Stateless; called by the engine's thread under torch.inference_mode."""

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[Sampled]:
        """One Sampled per row.  logits: [R, V] float32, overwritten."""
        wants_logprobs = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
        unmodified = logits[wants_logprobs] if wants_logprobs else None  # a copy
        change_logits(logits, rows)

        vocab_size = logits.shape[1]
        has_top_k = [0 < row.params.top_k < vocab_size for row in rows]
        is_greedy = [_is_greedy(row) for row in rows]
        takes_largest = [greedy or top_k for greedy, top_k in zip(is_greedy, has_top_k, strict=True)]
        kernels = choice_kernels() if logits.device.type == "cpu" else None
        if kernels is not None:
            chosen = torch.from_numpy(choose_by_kernels(kernels, logits.numpy(), rows, takes_largest))  # [R]
        else:
            chosen = _choose(logits, rows, takes_largest)
        is_finite = (chosen >= 0).tolist()
        by_candidates: dict[int, list[int]] = defaultdict(list)
        for i, row in enumerate(rows):
            if has_top_k[i] and is_finite[i] and not is_greedy[i]:
                by_candidates[_num_candidates(row.params.top_k, vocab_size)].append(i)
        for num_candidates, group in by_candidates.items():
            chosen[group] = _sample_candidates(logits[group], num_candidates, [rows[i] for i in group])

        sampled = [
            Sampled(token_id if finite else None)
            for token_id, finite in zip(chosen.tolist(), is_finite, strict=True)
        ]
        if unmodified is not None:
            counts = [rows[i].params.logprobs or 0 for i in wants_logprobs]
            for i, logprobs in zip(
                wants_logprobs, token_logprobs(unmodified, chosen[wants_logprobs].clamp(min=0), counts), strict=True
            ):
                if is_finite[i]:
                    sampled[i] = Sampled(logprobs.token_id, logprobs)
        return sampled

    def sample_on_cpu(self, logits: NDArray[np.float32], rows: Sequence[SamplingRow]) -> list[Sampled]:
        """The same for an array, and without torch where kernels do all that rows ask for; needs no inference mode."""
        kernels = choice_kernels()
        if kernels is None or not all(map(_is_plain, rows)):
            with torch.inference_mode():
                return self.sample(torch.from_numpy(logits), rows)
        chosen = choose_by_kernels(kernels, logits, rows, [_is_greedy(row) for row in rows])
        return [Sampled(token_id if token_id >= 0 else None) for token_id in chosen.tolist()]


def _is_greedy(row: SamplingRow) -> bool:
    return row.params.temperature < MIN_TEMPERATURE


def _is_plain(row: SamplingRow) -> bool:
    """Whether nothing changes its logits, nothing is said of them, and there is no top_k to heed."""
    params = row.params
    is_unchanged = row.rules is None and row.allowed is None and not row.forbidden_token_ids
    return is_unchanged and params.logprobs is None and (params.top_k <= 0 or _is_greedy(row))


def _choose(logits: Tensor, rows: Sequence[SamplingRow], greedy: Sequence[bool]) -> Tensor:
    """Tokens of rows without top_k, and the most likely ones of greedy rows.

    logits: [R, V], overwritten.  Returns [R]; -1 for a row with NaN or inf, or without any finite logit.
    """
    chosen = argmax(logits)  # NaN and +inf win
    finite = logits.gather(1, chosen[:, None])[:, 0].isfinite()
    by_nucleus = [i for i, is_finite in enumerate(finite.tolist()) if is_finite and not greedy[i]]
    if by_nucleus:
        chosen[by_nucleus] = _sample_nucleus(_select(logits, by_nucleus), [rows[i] for i in by_nucleus])
    return chosen.masked_fill_(~finite, -1)


def _select(logits: Tensor, row_ids: list[int]) -> Tensor:
    return logits if len(row_ids) == len(logits) else logits[row_ids]


def _num_candidates(top_k: int, vocab_size: int) -> int:
    """The power of two from top_k up: few distinct sizes, and a row's own affair (see draw_candidates)."""
    return min(max(MIN_CANDIDATES, 1 << (top_k - 1).bit_length()), vocab_size)


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)


def _uniforms(rows: Sequence[SamplingRow], like: Tensor, attempt: int = 0) -> Tensor:
    u = uniforms([row.seed for row in rows], [row.position for row in rows], attempt)
    return torch.from_numpy(u).to(like.device)


def _sample_nucleus(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Rows without top_k, the whole vocabulary being the candidates.  logits: [R, V], overwritten.  Returns [R]."""
    temperature = _column([row.params.temperature for row in rows], logits)
    probs = logits.div_(temperature[:, None].float()).softmax(-1)  # [R, V]
    with_min_p = [i for i, row in enumerate(rows) if row.params.min_p > 0.0]
    if with_min_p:
        min_p = _column([rows[i].params.min_p for i in with_min_p], logits).float()
        some = probs[with_min_p]
        probs[with_min_p] = torch.where(some < min_p[:, None] * some.amax(-1, keepdim=True), 0.0, some)

    def u_of(row_ids: Tensor, attempt: int) -> Tensor:
        return _uniforms([rows[i] for i in row_ids.tolist()], logits, attempt)

    return draw_nucleus(probs, _column([row.params.top_p for row in rows], logits), u_of)


def _sample_candidates(logits: Tensor, num_candidates: int, rows: Sequence[SamplingRow]) -> Tensor:
    """Rows with a top_k of at most num_candidates.  logits: [R, V].  Returns [R]."""
    return draw_candidates(
        logits,
        num_candidates,
        temperature=_column([row.params.temperature for row in rows], logits),
        top_k=torch.tensor([row.params.top_k for row in rows], device=logits.device),
        top_p=_column([row.params.top_p for row in rows], logits),
        min_p=_column([row.params.min_p for row in rows], logits),
        u=_uniforms(rows, logits),
    )
