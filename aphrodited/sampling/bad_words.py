"""BadWords: rows of tokens that an output must not come to hold. Says which token would complete one now."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable


class BadWords:
    """Of one sequence. always: the words of one token.

    Words of several are found by their last token but one, so that a step looks at those few that can be meant.
    """

    def __init__(self, words: Iterable[tuple[int, ...]]) -> None:
        self.always = frozenset(word[0] for word in words if len(word) == 1)
        self._by_token_before: defaultdict[int, list[tuple[array[int], int]]] = defaultdict(list)
        for word in words:
            if len(word) > 1:
                self._by_token_before[word[-2]].append((array("q", word[:-1]), word[-1]))

    def completed_by(self, token_ids: array[int], num_output_tokens: int) -> frozenset[int]:
        """Tokens that would complete a word of several tokens that lies in the output, the tail of token_ids."""
        if not num_output_tokens:
            return frozenset()
        candidates = self._by_token_before.get(token_ids[-1], ())
        return frozenset(
            last
            for beginning, last in candidates
            if len(beginning) <= num_output_tokens and token_ids[-len(beginning) :] == beginning
        )
