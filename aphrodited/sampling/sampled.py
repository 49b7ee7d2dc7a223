"""What goes into the sampler for each row of logits, and what comes out. Plain values: knows no tensors."""

from __future__ import annotations

from typing import NamedTuple

from aphrodited.outputs import TokenLogprobs
from aphrodited.sampling.bitmask import Bitmask
from aphrodited.sampling.logit_rules import LogitRules
from aphrodited.sampling_params import SamplingParams


class SamplingRow(NamedTuple):
    """How to choose one token.

    seed and position (tokens of the sequence before this one) alone decide its randomness.
    rules: penalties and biases, or None.  allowed: the tokens that may be chosen, or None for all.
    forbidden_token_ids: of those, the few that may not.
    """

    params: SamplingParams
    seed: int
    position: int
    forbidden_token_ids: frozenset[int] = frozenset()
    rules: LogitRules | None = None
    allowed: Bitmask | None = None


class Sampled(NamedTuple):
    """One chosen token. token_id is None if the row held no token with a finite logit to choose, or NaN or +inf.

    is_pending: nothing was chosen yet, because it is not known what the sequence's grammar allows.
    """

    token_id: int | None
    logprobs: TokenLogprobs | None = None
    is_pending: bool = False


PENDING = Sampled(None, is_pending=True)
