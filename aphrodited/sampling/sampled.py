"""What goes into the sampler for each row of logits, and what comes out. Plain values: knows no tensors."""

from __future__ import annotations

from typing import NamedTuple

from aphrodited.outputs import TokenLogprobs
from aphrodited.sampling_params import SamplingParams


class SamplingRow(NamedTuple):
    """How to choose one token.

    seed and position (tokens of the sequence before this one) alone decide its randomness.
    forbidden_token_ids may not be chosen: what would end a sequence that has not reached min_tokens.
    """

    params: SamplingParams
    seed: int
    position: int
    forbidden_token_ids: frozenset[int] = frozenset()


class Sampled(NamedTuple):
    """One chosen token. token_id is None if the row held no token with a finite logit to choose, or NaN or +inf."""

    token_id: int | None
    logprobs: TokenLogprobs | None = None
