"""Log-probabilities in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LOWEST), "bytes": list(raw)}


def completion_logprobs(
    entries: Sequence[TokenLogprobs], tokenizer: Tokenizer, offset: int
) -> tuple[dict[str, Any], int]:
    """The object, and where the next token begins; `offset` is where the first one does, in characters."""
    tokens, logprobs, tops, offsets = [], [], [], []
    for entry in entries:
        text = _name(entry.token_id, tokenizer)
        tokens.append(text)
        logprobs.append(max(entry.logprob, LOWEST))
        # The chosen token is always among them, as in OpenAI's answers: up to logprobs + 1 entries.
        top = {_name(token_id, tokenizer): max(logprob, LOWEST) for token_id, logprob in _top(entry)}
        tops.append({text: max(entry.logprob, LOWEST)} | top)
        offsets.append(offset)
        offset += len(text)
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}, offset


def _top(entry: TokenLogprobs) -> Iterator[tuple[int, float]]:
    return zip(entry.top_token_ids, entry.top_logprobs, strict=True)


def _name(token_id: int, tokenizer: Tokenizer) -> str:
    """The token's text, or `bytes:\\xe2\\x82` for a part of a character, as OpenAI writes it."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
