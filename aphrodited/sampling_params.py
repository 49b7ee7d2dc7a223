"""SamplingParams: how one request's tokens are chosen and when it ends.

Knows no model: limits that depend on one (vocabulary, context) are checked by the engine at the door.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from aphrodited.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1
MAX_COUNT = 2**63 - 1  # what travels as an integer
MAX_PENALTY = 2.0
MIN_REPETITION_PENALTY = 0.01
MAX_REPETITION_PENALTY = 100.0
MAX_LOGIT_BIAS = 100.0
MAX_BIASED_TOKENS = 1024
MAX_BAD_WORDS = 1024
MAX_GRAMMAR_CHARS = 128 * 1024


class GrammarKind(StrEnum):
    """The language of a grammar's source."""

    JSON = "json"  # a JSON schema, as JSON
    REGEX = "regex"  # matched as a whole
    CHOICE = "choice"  # a JSON list of strings, one of which is the answer
    GRAMMAR = "grammar"  # EBNF: Lark's notation, or GBNF


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """What an answer must look like. param: the field of the request that it came from, for errors."""

    kind: GrammarKind
    source: str
    param: str = "structured_outputs"


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """The sampling parameters of one sequence. `n` is not here: n choices are n requests.

    temperature: 0 is greedy.  top_k: 0 is off.  seed: None lets the engine pick one.
    max_tokens: None means up to the end of the context.  logprobs: how many alternatives per
    token, None is off, 0 is the chosen token alone; prompt_logprobs: the same for the prompt's tokens.

    presence_penalty and frequency_penalty are taken from the logits of tokens that were generated: once, and for
    each time.  repetition_penalty divides positive logits of tokens that are in the prompt or were generated, and
    multiplies negative ones.  logit_bias: added afterwards, by token id.  allowed_token_ids: None is all.
    bad_words_token_ids: each a row of tokens that is never completed.

    Fields between the lines concern text, and only whoever detokenises reads them.

    Raises RequestError from `validate`, with `param` set to the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    # -- text --
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    # -- tokens again: new fields go last, because they travel by their position --
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    def validate(self) -> None:
        """Raise RequestError for the first field that is out of its range."""
        _check(math.isfinite(self.temperature) and 0 <= self.temperature <= 100, "temperature", "a number from 0 to 100")
        _check(0 <= self.top_k <= MAX_COUNT, "top_k", "0 (off) or a positive integer")
        _check(math.isfinite(self.top_p) and 0 < self.top_p <= 1, "top_p", "a number above 0, at most 1")
        _check(math.isfinite(self.min_p) and 0 <= self.min_p <= 1, "min_p", "a number from 0 to 1")
        _check(self.seed is None or 0 <= self.seed <= MAX_SEED, "seed", f"an integer from 0 to {MAX_SEED}")
        _check(self.max_tokens is None or 1 <= self.max_tokens <= MAX_COUNT, "max_tokens", "a positive integer")
        _check(0 <= self.min_tokens <= MAX_COUNT, "min_tokens", "0 or a positive integer")
        _check(
            self.max_tokens is None or self.min_tokens <= self.max_tokens, "min_tokens", "at most max_tokens"
        )
        _check(all(t >= 0 for t in self.stop_token_ids), "stop_token_ids", "token ids of 0 or more")
        _check(
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, "logprobs", f"an integer from 0 to {MAX_LOGPROBS}"
        )
        _check(len(self.stop) <= MAX_STOP_STRINGS, "stop", f"at most {MAX_STOP_STRINGS} strings")
        _check(all(self.stop), "stop", "strings of at least one character")
        self._validate_logit_changes()
        _check(
            self.prompt_logprobs is None or 0 <= self.prompt_logprobs <= MAX_LOGPROBS,
            "prompt_logprobs",
            f"an integer from 0 to {MAX_LOGPROBS}",
        )
        if self.grammar is not None:
            kinds = list(GrammarKind)
            _check(self.grammar.kind in kinds, self.grammar.param, f"a grammar of a kind among {', '.join(kinds)}")
            _check(bool(self.grammar.source), self.grammar.param, "a grammar that is not empty")
            _check(
                len(self.grammar.source) <= MAX_GRAMMAR_CHARS,
                self.grammar.param,
                f"a grammar of at most {MAX_GRAMMAR_CHARS} characters",
            )

    def _validate_logit_changes(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            _check(abs(getattr(self, name)) <= MAX_PENALTY, name, f"a number from -{MAX_PENALTY:g} to {MAX_PENALTY:g}")
        _check(
            MIN_REPETITION_PENALTY <= self.repetition_penalty <= MAX_REPETITION_PENALTY,
            "repetition_penalty",
            f"a number from {MIN_REPETITION_PENALTY:g} to {MAX_REPETITION_PENALTY:g}",
        )
        bias = self.logit_bias or {}
        _check(len(bias) <= MAX_BIASED_TOKENS, "logit_bias", f"at most {MAX_BIASED_TOKENS} tokens")
        _check(all(token_id >= 0 for token_id in bias), "logit_bias", "token ids of 0 or more, each with its bias")
        _check(
            all(abs(value) <= MAX_LOGIT_BIAS for value in bias.values()),
            "logit_bias",
            f"a bias from -{MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g} for each token",
        )
        allowed = self.allowed_token_ids
        _check(allowed is None or (len(allowed) > 0 and min(allowed) >= 0), "allowed_token_ids", "one token id or more")
        words = self.bad_words_token_ids
        _check(len(words) <= MAX_BAD_WORDS, "bad_words", f"at most {MAX_BAD_WORDS} rows of tokens")
        _check(all(word and min(word) >= 0 for word in words), "bad_words", "words of one token or more")


def _check(holds: bool, param: str, expected: str) -> None:
    if not holds:
        raise RequestError(f"{param} must be {expected}", param=param)
