"""The answer of /v1/completions: the object `text_completion`, whole or as chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aphrodited.api.answers import Chunks, Head, Usage, encode_json
from aphrodited.api.logprobs import PromptScores, completion_logprobs, joined
from aphrodited.outputs import TokenLogprobs
from aphrodited.tokenizer.tokenizer import Tokenizer

KIND = "text_completion"


class CompletionAnswer:
    """See `answers.Answer`.

    echoes[i]: the text that choice i begins with, empty without echo.  scores[i]: of its prompt.
    """

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        include_usage: bool,
        echoes: Sequence[str],
        scores: Sequence[PromptScores],
    ) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._echoes = echoes
        self._scores = scores
        self._offsets = [len(echo) for echo in echoes]  # where each choice's next token begins in its text
        self.chunks = Chunks(head.as_dict(KIND), include_usage)

    def opening(self, index: int) -> bytes:
        echo = self._echoes[index]
        return self._chunk(index, echo, None) if echo and not self._scores[index].are_echoed else b""

    def prompt(self, index: int, prompt_logprobs: list[TokenLogprobs]) -> bytes:
        return self._chunk(index, self._echoes[index], self._scores[index].echoed(prompt_logprobs))

    def addition(self, index: int, text: str, logprobs: list[TokenLogprobs] | None) -> bytes:
        return self._chunk(index, text, self._logprobs(index, logprobs))

    def closing(self, index: int, finish_reason: str, stop_reason: int | str | None) -> bytes:
        return self.chunks.chunk(
            encode_json(
                {
                    "index": index,
                    "text": "",
                    "logprobs": None,
                    "finish_reason": finish_reason,
                    "stop_reason": stop_reason,
                }
            )
        )

    def choice(
        self,
        index: int,
        text: str,
        logprobs: list[TokenLogprobs] | None,
        finish_reason: str,
        stop_reason: int | str | None,
        prompt_logprobs: list[TokenLogprobs] | None,
    ) -> dict[str, Any]:
        scores = self._scores[index]
        echoed = scores.echoed(prompt_logprobs) if scores.are_echoed else None
        return {
            "index": index,
            "text": self._echoes[index] + text,
            "logprobs": joined(echoed, self._logprobs(index, logprobs)),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            **scores.field(prompt_logprobs),
        }

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> bytes:
        return encode_json({**self._head.as_dict(KIND), "choices": choices, "usage": usage.as_dict()})

    def _logprobs(self, index: int, logprobs: list[TokenLogprobs] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        made, self._offsets[index] = completion_logprobs(logprobs, self._tokenizer, self._offsets[index])
        return made

    def _chunk(self, index: int, text: str, logprobs: dict[str, Any] | None) -> bytes:
        return self.chunks.chunk(
            b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":null}'
            % (index, encode_json(text), encode_json(logprobs))
        )
