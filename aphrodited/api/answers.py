"""What chat and completion answers share: their head, the usage object, and the protocol both are written through."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from aphrodited.outputs import TokenLogprobs

encode_json = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Usage:
    """Tokens of one request. A prompt counts once, whatever the number of its choices."""

    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that every chunk of an answer repeats."""

    id: str
    model: str
    fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def as_dict(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"fp_{self.fingerprint[:16]}",
        }


class Chunks:
    """Chunks of one stream. The part before the choice is encoded once."""

    def __init__(self, head: dict[str, Any], include_usage: bool) -> None:
        self._prefix = b"data: " + encode_json(head)[:-1] + b',"choices":['
        self._suffix = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def chunk(self, choice: bytes) -> bytes:
        return self._prefix + choice + self._suffix

    def usage(self, usage: Usage) -> bytes:
        return self._prefix + b'],"usage":' + encode_json(usage.as_dict()) + b"}\n\n"


class Answer(Protocol):
    """One request's answer in the shape of its endpoint, chunk by chunk or whole.

    finish_reason is OpenAI's word; stop_reason is what stopped it (a string or token id of the request) or None.
    """

    chunks: Chunks

    def opening(self, index: int) -> bytes:
        """What a choice's stream begins with; may be empty."""
        ...

    def prompt(self, index: int, prompt_logprobs: list[TokenLogprobs]) -> bytes:
        """What a choice's stream says of its prompt, before its first addition; may be empty."""
        ...

    def addition(self, index: int, text: str, logprobs: list[TokenLogprobs] | None) -> bytes: ...

    def closing(self, index: int, finish_reason: str, stop_reason: int | str | None) -> bytes: ...

    def choice(
        self,
        index: int,
        text: str,
        logprobs: list[TokenLogprobs] | None,
        finish_reason: str,
        stop_reason: int | str | None,
        prompt_logprobs: list[TokenLogprobs] | None,
    ) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""
        ...

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> bytes: ...
