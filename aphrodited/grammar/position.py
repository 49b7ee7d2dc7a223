"""Position: a place in a compiled grammar. Knows no threads; constraint says who may move when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher

from aphrodited.grammar.refusal import refusal
from aphrodited.grammar.vocabulary import Vocabulary
from aphrodited.sampling.bitmask import Bitmask, without
from aphrodited.sampling_params import Grammar


class MatcherPosition(NamedTuple):
    """See constraint.Position."""

    grammar: Grammar
    vocabulary: Vocabulary
    matcher: LLMatcher
    allowed: Bitmask | None = None

    def after(self, token_ids: Sequence[int]) -> MatcherPosition:
        """Raises RequestError if the grammar does not take the tokens, or grows too complex."""
        matcher = self.matcher
        if token_ids and not matcher.consume_tokens(list(token_ids)):
            raise refusal(self.grammar, matcher.get_error() or "the tokens so far do not fit it")
        if matcher.is_stopped() and not matcher.is_error():
            return self._replace(allowed=None)
        allowed = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise refusal(self.grammar, matcher.get_error())
        if not without(allowed, self.vocabulary.eos_token_ids).any():
            return self._replace(allowed=None)
        return self._replace(allowed=allowed[: -(-self.vocabulary.size // 8)])
