"""Preparation: from a grammar to a sequence's first position in it. Works on one thread, and takes its time.

Each new grammar is examined in a process of its own before it is compiled here. Compiled ones, and those that failed,
are kept for the next request with the same one. Knows no sequences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from llguidance import LLMatcher

from aphrodited.errors import ModelLoadError, RequestError
from aphrodited.grammar.compiler import compile_grammar
from aphrodited.grammar.examination import Examination
from aphrodited.grammar.position import MatcherPosition
from aphrodited.grammar.refusal import unavailable
from aphrodited.grammar.vocabulary import Vocabulary, build_vocabulary
from aphrodited.log import get_logger
from aphrodited.sampling_params import Grammar

log = get_logger()

MAX_KEPT = 64


class Preparation:
    """Of one model. One thread calls `position`, any one `close`.  limit_s: how long a grammar may take."""

    def __init__(self, model_path: Path, vocab_size: int, eos_token_ids: Sequence[int], *, limit_s: float) -> None:
        self._model_path = model_path
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._examination = Examination(model_path, vocab_size, eos_token_ids, limit_s=limit_s)
        self._vocabulary: Vocabulary | None = None
        self._kept: OrderedDict[tuple[str, str], LLMatcher | RequestError] = OrderedDict()

    def position(self, grammar: Grammar, token_ids: Sequence[int]) -> MatcherPosition:
        """A sequence's own position after its first tokens. Raises RequestError."""
        vocabulary = self._loaded_vocabulary(grammar)
        return MatcherPosition(grammar, vocabulary, self._matcher(grammar, vocabulary)).after(token_ids)

    def close(self) -> None:
        """End the examiner's process."""
        self._examination.close()

    def _matcher(self, grammar: Grammar, vocabulary: Vocabulary) -> LLMatcher:
        key = str(grammar.kind), grammar.source
        known = self._kept.get(key)
        if known is None:
            known = self._kept[key] = self._compiled(grammar, vocabulary)
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        if isinstance(known, RequestError):
            raise RequestError(str(known), param=grammar.param, code=known.code)
        return known.deep_copy()

    def _compiled(self, grammar: Grammar, vocabulary: Vocabulary) -> LLMatcher | RequestError:
        try:
            self._examination.examine(grammar)
            return compile_grammar(grammar, vocabulary)
        except RequestError as error:
            if error.code == RequestError.code:  # the grammar's own fault, which stays
                return error
            raise

    def _loaded_vocabulary(self, grammar: Grammar) -> Vocabulary:
        if self._vocabulary is None:
            self._examination.start()  # loads the same while we do
            try:
                self._vocabulary = build_vocabulary(self._model_path, self._vocab_size, self._eos_token_ids)
            except ModelLoadError as error:
                log.error("vocabulary_failed", reason=str(error))
                raise unavailable(grammar, "its model's tokenizer cannot be loaded") from error
        return self._vocabulary
