"""The answer of /v1/completions: the object `text_completion`, whole or as chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aphrodited.api.answers import Answer, Head, encode_json
from aphrodited.api.choices import WholeChoice
from aphrodited.api.logprobs import PromptScores, completion_logprobs, joined
from aphrodited.outputs import TokenLogprobs
from aphrodited.tokenizer.tokenizer import Tokenizer


class CompletionAnswer(Answer):
    """echoes[i]: the text that choice i begins with, empty without echo."""

    kind = "text_completion"
    chunk_kind = "text_completion"
    chunk_field = "text"
    chunk_nothing = b'""'

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        include_usage: bool,
        scores: Sequence[PromptScores],
        echoes: Sequence[str],
    ) -> None:
        super().__init__(head, tokenizer, include_usage, scores)
        self._echoes = echoes
        self._offsets = [len(echo) for echo in echoes]  # where each choice's next token begins in its text

    def opening(self, index: int) -> bytes:
        echo = self._echoes[index]
        return self.chunks.addition(index, encode_json(echo)) if echo and not self._scores[index].are_echoed else b""

    def prompt(self, index: int, prompt_logprobs: list[TokenLogprobs]) -> bytes:
        echo = encode_json(self._echoes[index])
        return self.chunks.addition(index, echo, self._scores[index].echoed(prompt_logprobs))

    def addition(self, index: int, text: str, logprobs: list[TokenLogprobs] | None) -> bytes:
        return self.chunks.addition(index, encode_json(text), self._logprobs(index, logprobs))

    def content(self, choice: WholeChoice) -> dict[str, Any]:
        scores = self._scores[choice.index]
        echoed = scores.echoed(choice.prompt_logprobs) if scores.are_echoed else None
        return {
            "text": self._echoes[choice.index] + choice.text,
            "logprobs": joined(echoed, self._logprobs(choice.index, choice.logprobs)),
        }

    def _logprobs(self, index: int, logprobs: list[TokenLogprobs] | None) -> dict[str, Any] | None:
        if logprobs is None:
            return None
        made, self._offsets[index] = completion_logprobs(logprobs, self._tokenizer, self._offsets[index])
        return made
