"""An EngineClient and a tokenizer without an engine and without a model, for tests of the HTTP surface.

The tokenizer has one token per character, up to VOCAB_SIZE. The client answers a prompt with the characters of
`answer`, and can be told to wait, to die, to refuse and to be absent.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aphrodited.errors import EngineStartingError, MQEngineDeadError, RequestError
from aphrodited.interfaces import ModelFacts, PromptInput
from aphrodited.outputs import EmbeddingOutput, FinishReason, TokenLogprobs, TokenOutput
from aphrodited.request import EncodeRequest, EngineRequest, GenerateRequest
from aphrodited.sampling_params import SamplingParams

VOCAB_SIZE = 0x500
MAX_MODEL_LEN = 256
EMBEDDING_SIZE = 3


class FakeTokenizer:
    vocab_size = VOCAB_SIZE
    bos_token_id = 1

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [self.bos_token_id] * add_special_tokens + [ord(character) % VOCAB_SIZE for character in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(chr(token_id) for token_id in token_ids if token_id > 2 or not skip_special_tokens)

    def is_special(self, token_id: int) -> bool:
        return token_id <= 2

    begins_with_space = False

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def text_bytes(self, token_id: int, skip_special_tokens: bool) -> bytes:
        return self.decode([token_id], skip_special_tokens=skip_special_tokens).encode()

    def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        if chat_template_kwargs and chat_template_kwargs.get("refuse"):
            raise RequestError("the chat template refuses this", param="messages")
        text = "".join(f"<{message['role']}>{message['content'] or ''}" for message in messages)
        return self.encode(text + "<assistant>" * add_generation_prompt, add_special_tokens=False)


class FakeEngineClient:
    """See the module. `requests` and `calls` hold what it was given; `aborted` the labels that were left unfinished."""

    def __init__(self, answer: str = "Paris.") -> None:
        self.answer = answer
        self.facts: ModelFacts | None = ModelFacts(
            name="fake", max_model_len=MAX_MODEL_LEN, vocab_size=VOCAB_SIZE, eos_token_ids=(2,), block_size=16,
            num_blocks=64, max_num_seqs=8, dtype="float32", fingerprint="f00d" * 8, deterministic=True, backend="null",
            embedding_size=EMBEDDING_SIZE,
        )  # fmt: skip
        self.is_running = True
        self.errored = False
        self.dead_error: BaseException = MQEngineDeadError("the engine died", cause="killed by a test")
        self.refusal: BaseException | None = None
        self.die_after: int | None = None
        self.deaths: list[int] = []  # where in an answer each life of the engine ends; every open request gets `failure`
        self.generation = 1
        self.has_successor = True  # another engine runs as soon as this one has died
        self.failure: BaseException = self.dead_error
        self.finish_reason = FinishReason.STOP
        self.pause_s = 0.0
        self.gate = asyncio.Event()  # closed, an answer stops after `gate_after` tokens
        self.gate.set()
        self.gate_after = 0
        self.started = asyncio.Event()
        self.calls: list[tuple[list[int], SamplingParams, str, int]] = []
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.num_open = 0
        self.max_open = 0
        self.encode_calls: list[tuple[list[int], str, str, bool, int]] = []
        self.fingerprints: list[bytes] = []  # of those
        self.alone_untils: list[int] = []

    async def wait_until_running(self, timeout_s: float) -> bool:
        until_s = asyncio.get_running_loop().time() + timeout_s
        while not self.is_running and asyncio.get_running_loop().time() < until_s:
            await asyncio.sleep(0.005)
        return self.is_running

    @asynccontextmanager
    async def open(self, request: EngineRequest) -> AsyncIterator[FakeSource | FakeEmbedder]:
        if isinstance(request, EncodeRequest):
            self.fingerprints.append(request.fingerprint)
            self.alone_untils.append(request.alone_until)
            yield FakeEmbedder(self, request)
            return
        self.requests.append(request)
        params = request.sampling_params
        self.calls.append((request.prompt_token_ids, params, request.request_id, request.priority))
        if self.refusal is not None:
            raise self.refusal
        if not self.is_running:
            raise EngineStartingError("no engine yet", retry_after_s=3)
        self.num_open += 1
        source = FakeSource(self, request)
        try:
            yield source
        finally:
            self.num_open -= 1
            if not source.has_finished:
                self.aborted.append(request.request_id)

    async def encode(
        self,
        prompt: PromptInput,
        request_id: str,
        *,
        pooling: str = "last",
        normalize: bool = True,
        priority: int = 0,
    ) -> EmbeddingOutput:
        assert isinstance(prompt, list)
        self.encode_calls.append((prompt, request_id, pooling, normalize, priority))
        if self.refusal is not None:
            raise self.refusal
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        finished = False
        try:
            self.started.set()
            await self.gate.wait()
            if self.die_after == len(self.encode_calls):
                raise self.failure
            await asyncio.sleep(self.pause_s)
            finished = True
            return EmbeddingOutput(request_id, prompt, struct.pack("<3f", 0.5, -0.1, prompt[-1]))
        finally:
            self.num_open -= 1
            if not finished:
                self.aborted.append(request_id)

    async def abort(self, request_id: str) -> None:
        return None

    async def check_health(self) -> None:
        return None

    async def do_log_stats(self) -> None:
        return None

    def close(self) -> None:
        self.is_running = False


class FakeEmbedder:
    """The one output of an EncodeRequest."""

    def __init__(self, engine: FakeEngineClient, request: EncodeRequest) -> None:
        self._engine = engine
        self._request = request

    async def get(self) -> TokenOutput:
        asked = self._request
        output = await self._engine.encode(
            asked.prompt_token_ids,
            asked.request_id,
            pooling=asked.pooling,
            normalize=asked.normalize,
            priority=asked.priority,
        )
        return TokenOutput(1, [], FinishReason.STOP, embedding=output.data)


class FakeSource:
    """The outputs of one request: a token for each character of the answer, those that are replayed left out."""

    def __init__(self, engine: FakeEngineClient, request: GenerateRequest) -> None:
        self._engine = engine
        self._request = request
        self._position = request.num_replayed
        self._generation = engine.generation
        self.has_finished = False

    async def get(self) -> TokenOutput:
        engine, params, position = self._engine, self._request.sampling_params, self._position
        text = engine.answer[: params.max_tokens]
        reason = FinishReason.LENGTH if len(text) < len(engine.answer) else engine.finish_reason
        if position >= engine.gate_after:
            engine.started.set()
            await engine.gate.wait()
        if position == engine.die_after:
            raise engine.failure
        await asyncio.sleep(engine.pause_s)
        if self._generation == engine.generation and engine.deaths and position == engine.deaths[0]:
            engine.deaths.pop(0)
            engine.generation += 1
            engine.is_running = engine.has_successor
        if self._generation != engine.generation:
            raise engine.failure
        token_id = ord(text[position])
        self._position += 1
        self.has_finished = self._position == len(text)
        is_first = position == self._request.num_replayed
        return TokenOutput(
            1,
            [token_id],
            reason if self.has_finished else None,
            logprobs=None if params.logprobs is None else [_logprobs(token_id, params.logprobs)],
            num_cached_tokens=16 if is_first else 0,
            prompt_logprobs=[_logprobs(token, params.prompt_logprobs) for token in self._request.prompt_token_ids[1:]]
            if is_first and params.prompt_logprobs is not None
            else None,
        )


def _logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    top = [token_id, *range(65, 65 + num_top)][:num_top]
    return TokenLogprobs(token_id, -0.5, 1, top, [-0.5 - index for index in range(num_top)])
