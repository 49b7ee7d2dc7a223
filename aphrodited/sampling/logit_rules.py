"""LogitRules: what one sequence's parameters make of its logits before the filters, kept up token by token.

Everything that a step needs lies ready in arrays. Plain numpy: logit_changes applies them to tensors.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from aphrodited.sampling.bad_words import BadWords
from aphrodited.sampling.bitmask import Bitmask, full_mask, mask_of, without
from aphrodited.sampling.token_counts import TokenCounts
from aphrodited.sampling_params import SamplingParams

NO_TOKENS: frozenset[int] = frozenset()


class LogitRules:
    """Of one sequence.

    counts: None without penalties.  bias_ids, bias: of equal length.  allowed: what allowed_token_ids and bad words of
    one token leave; None is all.
    """

    __slots__ = ("_bad_words", "allowed", "bias", "bias_ids", "counts")

    def __init__(self, params: SamplingParams, prompt: array[int], output: array[int], vocab_size: int) -> None:
        self.counts = TokenCounts(prompt, output) if params.has_penalties else None
        bias = params.logit_bias or {}
        self.bias_ids: NDArray[np.int64] = np.fromiter(bias.keys(), dtype=np.int64)
        self.bias: NDArray[np.float32] = np.fromiter(bias.values(), dtype=np.float32)
        self._bad_words = BadWords(params.bad_words_token_ids) if params.bad_words_token_ids else None
        never = self._bad_words.always if self._bad_words is not None else NO_TOKENS
        self.allowed = _allowed(params.allowed_token_ids, never, vocab_size)

    def add(self, token_id: int) -> None:
        """Take note of a token that was generated."""
        if self.counts is not None:
            self.counts.add(token_id)

    def forbidden(self, token_ids: array[int], num_output_tokens: int) -> frozenset[int]:
        """Tokens that would complete a bad word now. token_ids: prompt and output."""
        if self._bad_words is None:
            return NO_TOKENS
        return self._bad_words.completed_by(token_ids, num_output_tokens)


def logit_rules(
    params: SamplingParams, prompt: array[int], output: array[int], vocab_size: int
) -> LogitRules | None:
    """The rules of a sequence, or None if its parameters need none: most cost nothing."""
    if (
        params.has_penalties
        or params.logit_bias
        or params.bad_words_token_ids
        or params.allowed_token_ids is not None
    ):
        return LogitRules(params, prompt, output, vocab_size)
    return None


def _allowed(
    allowed_token_ids: tuple[int, ...] | None, never: Collection[int], vocab_size: int
) -> Bitmask | None:
    if allowed_token_ids is None and not never:
        return None
    mask = full_mask(vocab_size) if allowed_token_ids is None else mask_of(allowed_token_ids, vocab_size)
    return without(mask, never)
