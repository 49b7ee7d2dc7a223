"""TextClient: what every client of an engine does with text, in the caller's process: prompts to ids, ids to answers.

Knows no transport: how a request reaches its engine is the client's own, see `open`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from aphrodited.errors import RequestError
from aphrodited.interfaces import PromptInput
from aphrodited.outputs import EmbeddingOutput, RequestOutput
from aphrodited.request import EncodeRequest, EngineRequest, GenerateRequest, Pooling
from aphrodited.sampling_params import SamplingParams
from aphrodited.streams import TokenStream
from aphrodited.tokenizer.detokenizer import OutputBuilder
from aphrodited.tokenizer.tokenizer import Tokenizer, load_tokenizer

LONG_PROMPT = 20_000
"""Characters from which a prompt is tokenised in a thread, so that it does not hold up the event loop."""


class TextClient(ABC):
    """The part of an interfaces.EngineClient that reads prompts and writes answers.

    tokenizer_path: the model's file or directory, to load a tokenizer from at first use if there is none yet. Without
    either, prompts are token ids and answers carry no text.
    """

    def __init__(self, tokenizer: Tokenizer | None, tokenizer_path: Path | None = None) -> None:
        self._tokenizer = tokenizer
        self._tokenizer_path = tokenizer_path

    @abstractmethod
    def open(self, request: EngineRequest) -> AbstractAsyncContextManager[TokenStream]:
        """As EngineClient.open."""

    async def generate(
        self, prompt: PromptInput, sampling_params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncIterator[RequestOutput]:
        sampling_params.validate()
        text, token_ids = await self._tokenize(prompt)
        builder = OutputBuilder(request_id, text, token_ids, sampling_params, self._tokenizer)
        async with self.open(GenerateRequest(request_id, token_ids, sampling_params, priority)) as stream:
            while True:
                answer = builder.add(await stream.get())
                yield answer
                if answer.finished:
                    return

    async def encode(
        self,
        prompt: PromptInput,
        request_id: str,
        *,
        pooling: str = Pooling.LAST,
        normalize: bool = True,
        priority: int = 0,
    ) -> EmbeddingOutput:
        _, token_ids = await self._tokenize(prompt)
        async with self.open(EncodeRequest(request_id, token_ids, pooling, normalize, priority)) as stream:
            return await stream.embedding(token_ids)

    async def _tokenize(self, prompt: PromptInput) -> tuple[str | None, list[int]]:
        """The prompt's text, if it came as text, and its ids."""
        if self._tokenizer is None and self._tokenizer_path is not None:
            self._tokenizer = await asyncio.to_thread(load_tokenizer, self._tokenizer_path)
        if not isinstance(prompt, str):
            return None, prompt
        if self._tokenizer is None:
            raise RequestError("a text prompt needs a tokenizer: give token ids, or a client with one", param="prompt")
        if len(prompt) < LONG_PROMPT:
            return prompt, self._tokenizer.encode(prompt)
        return prompt, await asyncio.to_thread(self._tokenizer.encode, prompt)
