"""SamplingParams: how one request's tokens are chosen and when it ends.

Knows no model: limits that depend on one (vocabulary, context) are checked by the engine at the door.
"""

from __future__ import annotations

import math

import msgspec

from aphrodited.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20
MAX_SEED = 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """The sampling parameters of one sequence. `n` is not here: n choices are n requests.

    temperature: 0 is greedy.  top_k: 0 is off.  seed: None lets the engine pick one.
    max_tokens: None means up to the end of the context.  logprobs: how many alternatives per
    token, None is off, 0 is the chosen token alone.  Fields below the line concern text, and only
    whoever detokenises reads them.

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

    def validate(self) -> None:
        """Raise RequestError for the first field that is out of its range."""
        _check(math.isfinite(self.temperature) and 0 <= self.temperature <= 100, "temperature", "a number from 0 to 100")
        _check(self.top_k >= 0, "top_k", "0 (off) or a positive integer")
        _check(math.isfinite(self.top_p) and 0 < self.top_p <= 1, "top_p", "a number above 0, at most 1")
        _check(math.isfinite(self.min_p) and 0 <= self.min_p <= 1, "min_p", "a number from 0 to 1")
        _check(self.seed is None or 0 <= self.seed <= MAX_SEED, "seed", f"an integer from 0 to {MAX_SEED}")
        _check(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "a positive integer")
        _check(self.min_tokens >= 0, "min_tokens", "0 or a positive integer")
        _check(
            self.max_tokens is None or self.min_tokens <= self.max_tokens, "min_tokens", "at most max_tokens"
        )
        _check(all(t >= 0 for t in self.stop_token_ids), "stop_token_ids", "token ids of 0 or more")
        _check(
            self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, "logprobs", f"an integer from 0 to {MAX_LOGPROBS}"
        )
        _check(len(self.stop) <= MAX_STOP_STRINGS, "stop", f"at most {MAX_STOP_STRINGS} strings")
        _check(all(self.stop), "stop", "strings of at least one character")


def _check(holds: bool, param: str, expected: str) -> None:
    if not holds:
        raise RequestError(f"{param} must be {expected}", param=param)
