"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from aphrodited.outputs import TokenLogprobs
from aphrodited.tokenizer.tokenizer import Tokenizer

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def chat_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    content = [
        {
            **_token(entry.token_id, entry.logprob, tokenizer),
            "top_logprobs": [_token(token_id, logprob, tokenizer) for token_id, logprob in _top(entry)],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _token(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {"token": raw.decode("utf-8", "replace"), "logprob": _clamped(logprob), "bytes": list(raw)}


@dataclass(frozen=True, slots=True)
class PromptScores:
    """The log-probabilities of one prompt's tokens, as far as its request asked for them.

    num_alternatives: of `prompt_logprobs`.  num_echoed: of an echoed prompt's `logprobs`. None is not asked for.
    """

    token_ids: Sequence[int]
    tokenizer: Tokenizer
    num_alternatives: int | None
    num_echoed: int | None = None

    @property
    def are_echoed(self) -> bool:
        return self.num_echoed is not None

    def field(self, entries: Sequence[TokenLogprobs] | None) -> dict[str, Any]:
        """The choice's field `prompt_logprobs`, if it is wanted: for each token null or {id: ...}, itself first."""
        if self.num_alternatives is None:
            return {}
        scored = [self._alternatives(entry, self.num_alternatives) for entry in entries or ()]
        return {"prompt_logprobs": [None, *scored]}

    def echoed(self, entries: Sequence[TokenLogprobs] | None) -> dict[str, Any]:
        """The object `logprobs` of the prompt's tokens, the first of which has none."""
        names = [_name(token_id, self.tokenizer) for token_id in self.token_ids]
        shown = [0 if self.tokenizer.is_special(i) else len(name) for i, name in zip(self.token_ids, names, strict=True)]
        entries = entries or ()
        unknown = [None] * (len(names) - len(entries))  # the first, and all if nothing was computed
        return {
            "tokens": names,
            "token_logprobs": [*unknown, *(_clamped(entry.logprob) for entry in entries)],
            "top_logprobs": [*unknown, *(_tops(entry, self.tokenizer, self.num_echoed) for entry in entries)],
            "text_offset": [0, *accumulate(shown[:-1])],
        }

    def _alternatives(self, entry: TokenLogprobs, num_alternatives: int) -> dict[str, Any]:
        alternatives = list(zip(entry.top_token_ids, entry.top_logprobs, range(1, num_alternatives + 1), strict=False))
        return {
            str(token_id): {"logprob": _clamped(logprob), "rank": rank, "decoded_token": _name(token_id, self.tokenizer)}
            for token_id, logprob, rank in ((entry.token_id, entry.logprob, entry.rank), *alternatives)
        }


def joined(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """Two objects `logprobs` as one."""
    if first is None or second is None:
        return first or second
    return {name: first[name] + second[name] for name in first}


def completion_logprobs(
    entries: Sequence[TokenLogprobs], tokenizer: Tokenizer, offset: int
) -> tuple[dict[str, Any], int]:
    """The object, and where the next token begins; `offset` is where the first one does, in characters."""
    tokens, logprobs, tops, offsets = [], [], [], []
    for entry in entries:
        text = _name(entry.token_id, tokenizer)
        tokens.append(text)
        logprobs.append(_clamped(entry.logprob))
        tops.append(_tops(entry, tokenizer))
        offsets.append(offset)
        offset += len(text)
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}, offset


def _tops(entry: TokenLogprobs, tokenizer: Tokenizer, limit: int | None = None) -> dict[str, float]:
    """The chosen token is always among them, as in OpenAI's answers: up to limit + 1 entries."""
    top = {_name(token_id, tokenizer): _clamped(logprob) for token_id, logprob in list(_top(entry))[:limit]}
    return {_name(entry.token_id, tokenizer): _clamped(entry.logprob)} | top


def _clamped(logprob: float) -> float:
    return max(logprob, LOWEST)


def _top(entry: TokenLogprobs) -> Iterator[tuple[int, float]]:
    return zip(entry.top_token_ids, entry.top_logprobs, strict=True)


def _name(token_id: int, tokenizer: Tokenizer) -> str:
    """The token's text, or `bytes:\\xe2\\x82` for a part of a character, as OpenAI writes it."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
