"""What chat and completion answers share: their head, the usage object, and all of their shape but the content."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from aphrodited.api.choices import WholeChoice
from aphrodited.api.logprobs import PromptScores
from aphrodited.outputs import FinishReason, TokenLogprobs
from aphrodited.tokenizer.tokenizer import Tokenizer

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
    """Writes the chunks of one stream. All that they repeat is encoded once: a chunk is its text between two ends.

    field: where a choice's content is.  nothing: content without any, as JSON.
    """

    def __init__(self, head: dict[str, Any], field: str, nothing: bytes, include_usage: bool) -> None:
        self._begin = b"data: " + encode_json(head)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._plain_end = b',"logprobs":null,"finish_reason":null}' + self._end
        self._field = field
        self._nothing = nothing
        self._choices: dict[int, bytes] = {}  # what comes before each choice's content

    def addition(self, index: int, content: bytes, logprobs: dict[str, Any] | None = None) -> bytes:
        """A chunk with more of one choice. `content` is JSON."""
        if logprobs is None:
            return self._choice(index) + content + self._plain_end
        scored = content + b',"logprobs":' + encode_json(logprobs)
        return self._choice(index) + scored + b',"finish_reason":null}' + self._end

    def closing(self, index: int, finish_reason: FinishReason, stop_reason: int | str | None) -> bytes:
        """A choice's last chunk."""
        ending = b',"logprobs":null,"finish_reason":%b,"stop_reason":%b}' % (
            encode_json(finish_reason),
            encode_json(stop_reason),
        )
        return self._choice(index) + self._nothing + ending + self._end

    def usage(self, usage: Usage) -> bytes:
        return self._begin + b'],"usage":' + encode_json(usage.as_dict()) + b"}\n\n"

    def _choice(self, index: int) -> bytes:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = b'%b{"index":%d,"%b":' % (self._begin, index, self._field.encode())
        return choice


class Answer(ABC):
    """One request's answer in the shape of its endpoint, chunk by chunk or whole.

    scores[i]: of choice i's prompt.  Endings are told in OpenAI's words (finish_reason), and by what stopped the choice
    (stop_reason): a string or token id of the request, or None.
    """

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    chunk_field: ClassVar[str]
    chunk_nothing: ClassVar[bytes]

    def __init__(self, head: Head, tokenizer: Tokenizer, include_usage: bool, scores: Sequence[PromptScores]) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._scores = scores
        self.chunks = Chunks(head.as_dict(self.chunk_kind), self.chunk_field, self.chunk_nothing, include_usage)

    @abstractmethod
    def opening(self, index: int) -> bytes:
        """What a choice's stream begins with; may be empty."""

    @abstractmethod
    def prompt(self, index: int, prompt_logprobs: list[TokenLogprobs]) -> bytes:
        """What a choice's stream says of its prompt, before its first addition; may be empty."""

    @abstractmethod
    def addition(self, index: int, text: str, logprobs: list[TokenLogprobs] | None) -> bytes:
        """A chunk with more of one choice."""

    @abstractmethod
    def content(self, choice: WholeChoice) -> dict[str, Any]:
        """The fields of a whole choice that only this endpoint has, `logprobs` among them."""

    def whole(self, choices: Sequence[WholeChoice], usage: Usage) -> bytes:
        """The answer that is not streamed."""
        made = [self._whole_choice(choice) for choice in choices]
        return encode_json({**self._head.as_dict(self.kind), "choices": made, "usage": usage.as_dict()})

    def _whole_choice(self, choice: WholeChoice) -> dict[str, Any]:
        return {
            "index": choice.index,
            **self.content(choice),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            **self._scores[choice.index].field(choice.prompt_logprobs),
        }
