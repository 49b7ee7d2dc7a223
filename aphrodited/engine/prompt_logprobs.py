"""PromptLogprobs: what a model thought of one prompt's own tokens, put together from the chunks that steps compute.

Knows no model and no torch.
"""

from __future__ import annotations

from aphrodited.outputs import TokenLogprobs


class PromptLogprobs:
    """Of one sequence. num_tokens: of its prompt.  num_alternatives: as asked for.

    entries: of the prompt's tokens from the second on, as far as they are known.
    """

    def __init__(self, num_tokens: int, num_alternatives: int) -> None:
        self.num_alternatives = num_alternatives
        self.entries: list[TokenLogprobs] = []
        self._num_due = num_tokens - 1

    @property
    def are_complete(self) -> bool:
        return len(self.entries) == self._num_due

    def due(self, start: int, num_tokens: int) -> range:
        """Those of these positions whose logits judge a token that was not judged yet: the one after each."""
        return range(max(start, len(self.entries)), min(start + num_tokens, self._num_due))

    def take(self, entries: list[TokenLogprobs]) -> None:
        """Take in what came of the first positions that `due` named."""
        self.entries += entries
