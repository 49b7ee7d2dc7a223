"""How many tokens of answers that another engine began a step computes: few, so that the shortest go on while the longer ones are
computed.
"""

from __future__ import annotations

MIN_TOKENS, SHARE = 64, 16
"""About so many, or a sixteenth of what a step may compute, if that is more."""


class ResumedShare:
    def __init__(self, max_num_batched_tokens: int) -> None:
        self._num_tokens = max(MIN_TOKENS, max_num_batched_tokens // SHARE)

    def limit(self, num_missing: int, num_scheduled: int) -> int:
        """How many of an answer's missing tokens may join so many of others.

        A step ends with the last token of an answer, if it may be half as long or half as long again for that: the answer would
        wait for whatever is computed beside it.
        """
        if num_scheduled >= self._num_tokens // 2:
            return 0
        if num_scheduled + num_missing <= self._num_tokens + self._num_tokens // 2:
            return num_missing
        return self._num_tokens - num_scheduled
