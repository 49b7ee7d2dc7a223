"""The answer of /v1/chat/completions: objects `chat.completion` and `chat.completion.chunk`."""

from __future__ import annotations

from typing import Any

from aphrodited.api.answers import Chunks, Head, Usage, encode_json
from aphrodited.api.logprobs import PromptScores, chat_logprobs
from aphrodited.outputs import TokenLogprobs
from aphrodited.tokenizer.tokenizer import Tokenizer


class ChatAnswer:
    """See `answers.Answer`."""

    def __init__(self, head: Head, tokenizer: Tokenizer, include_usage: bool, scores: PromptScores) -> None:
        self._scores = scores
        self._head = head
        self._tokenizer = tokenizer
        self.chunks = Chunks(head.as_dict("chat.completion.chunk"), include_usage)

    def opening(self, index: int) -> bytes:
        return self._chunk(index, b'{"role":"assistant","content":""}')

    def prompt(self, index: int, prompt_logprobs: list[TokenLogprobs]) -> bytes:
        return b""

    def addition(self, index: int, text: str, logprobs: list[TokenLogprobs] | None) -> bytes:
        return self._chunk(index, b'{"content":' + encode_json(text) + b"}", self._logprobs(logprobs))

    def closing(self, index: int, finish_reason: str, stop_reason: int | str | None) -> bytes:
        return self.chunks.chunk(
            encode_json(
                {
                    "index": index,
                    "delta": {},
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
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": self._logprobs(logprobs),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            **self._scores.field(prompt_logprobs),
        }

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> bytes:
        head = self._head.as_dict("chat.completion")
        return encode_json({**head, "choices": choices, "usage": usage.as_dict()})

    def _logprobs(self, logprobs: list[TokenLogprobs] | None) -> dict[str, Any] | None:
        return None if logprobs is None else chat_logprobs(logprobs, self._tokenizer)

    def _chunk(self, index: int, delta: bytes, logprobs: dict[str, Any] | None = None) -> bytes:
        return self.chunks.chunk(
            b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}' % (index, delta, encode_json(logprobs))
        )
