"""The answer of /v1/chat/completions: objects `chat.completion` and `chat.completion.chunk`."""

from __future__ import annotations

from typing import Any

from aphrodited.api.answers import Answer, encode_json
from aphrodited.api.choices import WholeChoice
from aphrodited.api.logprobs import chat_logprobs
from aphrodited.outputs import TokenLogprobs


class ChatAnswer(Answer):
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    chunk_field = "delta"
    chunk_nothing = b"{}"

    def opening(self, index: int) -> bytes:
        return self.chunks.addition(index, b'{"role":"assistant","content":""}')

    def prompt(self, index: int, prompt_logprobs: list[TokenLogprobs]) -> bytes:
        return b""

    def addition(self, index: int, text: str, logprobs: list[TokenLogprobs] | None) -> bytes:
        return self.chunks.addition(index, b'{"content":' + encode_json(text) + b"}", self._logprobs(logprobs))

    def content(self, choice: WholeChoice) -> dict[str, Any]:
        return {
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": self._logprobs(choice.logprobs),
        }

    def _logprobs(self, logprobs: list[TokenLogprobs] | None) -> dict[str, Any] | None:
        return None if logprobs is None else chat_logprobs(logprobs, self._tokenizer)
