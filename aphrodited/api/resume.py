"""Resumer: carries a request over the end of its engine, so that its client notices a pause and nothing else.

    submitted ──▶ outputs come ──▶ finished
        ▲               │  the engine died or stopped, or its output was lost
        └──── held ◀────┘  until another engine runs, at most hold_timeout_s

Whatever was received, shown or held back, is submitted again behind the prompt, as replayed tokens, and the same
OutputBuilder goes on. Randomness depends on seed and position alone, so a request with a seed gives the bytes that an
undisturbed engine would have given; another engine may only go on if its fingerprint says that it computes the same.

A request may be what ends its engines. So before it goes on, the judgement of the death is heard, if it comes in time: a
suspect runs alone for a while, and the convicted is refused. Knows no HTTP and no transport.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from aphrodited.api.admission import Admission
from aphrodited.api.error_responses import EngineUnavailableError
from aphrodited.api.quarantine import Quarantine
from aphrodited.api.served_model import ServedModel
from aphrodited.config.schema import RecoveryConfig
from aphrodited.errors import (
    EngineError,
    EngineStartingError,
    EngineStoppingError,
    MQEngineDeadError,
    OutputLostError,
    QueueFullError,
    RequestAbortedError,
)
from aphrodited.interfaces import ModelFacts
from aphrodited.log import get_logger
from aphrodited.metrics import ApiMetrics
from aphrodited.outputs import EmbeddingOutput, RequestOutput, TokenOutput
from aphrodited.request import EncodeRequest, EngineRequest, GenerateRequest
from aphrodited.tokenizer.detokenizer import OutputBuilder

log = get_logger()

RETRY_S = 0.1
"""Pause before an engine that takes nothing now is asked again."""

BYTES_PER_TOKEN = 8  # of what is held

_INTERRUPTED = (MQEngineDeadError, OutputLostError)
_NOT_TAKEN = (EngineStartingError, EngineStoppingError, QueueFullError)


class Resumer:
    """One for a worker's life. With `on_engine_death: fail` every request has one engine and gets its error at once."""

    def __init__(
        self,
        admission: Admission,
        quarantine: Quarantine,
        metrics: ApiMetrics,
        recovery: RecoveryConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admission = admission
        self.quarantine = quarantine
        self.metrics = metrics
        self.max_resumes = recovery.max_resumes if recovery.on_engine_death == "resume" else 0
        self.clock = clock

    async def generate(
        self, model: ServedModel, request: GenerateRequest, facts: ModelFacts
    ) -> AsyncIterator[RequestOutput]:
        """The answer to a request of this worker, as it grows.  facts: of the engine that the request was checked for.

        Raises RequestError, EngineUnavailableError, and what else `EngineClient.open` raises.
        """
        prompt, params = request.prompt_token_ids, request.sampling_params
        builder = OutputBuilder(request.request_id, None, prompt, params, model.usable_tokenizer())
        lives = _Lives(self, model, request, facts)
        while True:
            try:
                resumed = _continued(request, builder.token_ids, lives.alone_until)
                async with model.client.open(resumed) as source:
                    while not (output := builder.add(await source.get())).finished:
                        yield output
                break  # leaving the block first: a stop string has ended an answer that the engine would go on with
            except (*_INTERRUPTED, *_NOT_TAKEN) as error:
                await lives.wait_for_next(error, len(builder.token_ids))
        yield output

    async def encode(self, model: ServedModel, request: EncodeRequest, facts: ModelFacts) -> EmbeddingOutput:
        """The embedding that a request of this worker asks for; from the beginning in each engine. Raises as `generate`."""
        lives = _Lives(self, model, request, facts)
        while True:
            try:
                again = msgspec.structs.replace(request, alone_until=lives.alone_until)
                async with model.client.open(again) as source:
                    output = await source.get()
                return _embedding(request, output)
            except (*_INTERRUPTED, *_NOT_TAKEN) as error:
                await lives.wait_for_next(error, 0)


class _Lives:
    """One request on its way from engine to engine. Making it raises RequestQuarantinedError.

    Each interruption counts, and starts the clock of a wait; an engine that does not take it is asked again meanwhile.
    """

    def __init__(self, resumer: Resumer, model: ServedModel, request: EngineRequest, facts: ModelFacts) -> None:
        self._resumer = resumer
        self._model = model
        self._request = request
        self._facts = facts
        self._num_interruptions = 0
        self._lost: EngineError | None = None  # why it waits, or waited last
        self._lost_at_s = 0.0
        self._num_tokens = 0  # when it was lost
        self._dead_generation = 0  # of the engine that died with it, until that was judged
        self._check_quarantine()

    @property
    def alone_until(self) -> int:
        """How many of its tokens it computes alone in the next engine.

        A new request is not looked at so closely, unless its client is the one that submits it again.
        """
        is_submitted_again = self._num_interruptions or not self._resumer.max_resumes
        return self._model.rulings.alone_until(self._request.fingerprint) if is_submitted_again else 0

    async def wait_for_next(self, error: EngineError | QueueFullError, num_tokens: int) -> None:
        """Return as soon as the request, with so many tokens of its answer, may be submitted again.

        Raises the error that its client is told, if that may not be.
        """
        resumer = self._resumer
        if not resumer.max_resumes:
            raise self._model.died(error) if isinstance(error, MQEngineDeadError) else error
        is_interrupted = isinstance(error, _INTERRUPTED)
        self._num_interruptions += is_interrupted
        if isinstance(error, MQEngineDeadError):
            self._dead_generation = error.generation
        is_new = is_interrupted or self._lost is None or num_tokens > self._num_tokens
        if is_new:
            if isinstance(error, QueueFullError):
                raise error  # no engine has had it: the client may well wait itself
            self._lost, self._lost_at_s, self._num_tokens = error, resumer.clock(), num_tokens
        assert self._lost is not None
        if self._num_interruptions > resumer.max_resumes:
            raise self._model.died(self._lost, f"the request was resumed {resumer.max_resumes} times already")
        if not is_interrupted:
            await asyncio.sleep(RETRY_S)
        await self._wait(self._lost, num_tokens)
        if is_new:
            self._note(self._lost, num_tokens)

    async def _wait(self, lost: EngineError, num_tokens: int) -> None:
        size = BYTES_PER_TOKEN * (len(self._request.prompt_token_ids) + num_tokens)
        await self._hear_judgement()  # while the next engine starts
        try:
            facts = await self._resumer.admission.wait_to_resume(self._model, size, self._lost_at_s)
        except EngineUnavailableError as error:
            await self._hear_judgement()
            raise self._model.died(lost, str(error)) from error
        await self._hear_judgement()  # an engine that fails says so before it ends, and its end is what is judged
        self._dead_generation = 0  # whoever has not judged it by now is not waited for
        if not _computes_the_same(facts, self._facts, self._request):
            raise self._model.died(lost, "the engine that runs now has another model or other settings")

    async def _hear_judgement(self) -> None:
        """Of the last death, if it comes in time. Raises RequestQuarantinedError."""
        if await self._model.rulings.until_judged(self._dead_generation):
            self._dead_generation = 0
        self._check_quarantine()

    def _check_quarantine(self) -> None:
        self._resumer.quarantine.check(self._model, self._request.fingerprint, self._request.request_id)

    def _note(self, lost: EngineError, num_tokens: int) -> None:
        self._resumer.metrics.resumed(self._model.name, num_tokens)
        log.info(
            "request_resumed",
            request_id=self._request.request_id,
            model=self._model.name,
            num_interruptions=self._num_interruptions,
            num_replayed=num_tokens,
            alone_until=self.alone_until,
            waited_s=round(self._resumer.clock() - self._lost_at_s, 3),
            cause=str(lost),
        )


def _continued(request: GenerateRequest, token_ids: list[int], alone_until: int) -> GenerateRequest:
    """The request as it goes on after these tokens of its answer. What comes with a first token has come."""
    if alone_until:
        request = msgspec.structs.replace(request, alone_until=alone_until)
    if not token_ids:
        return request
    return msgspec.structs.replace(
        request,
        prompt_token_ids=request.prompt_token_ids + token_ids,
        sampling_params=msgspec.structs.replace(request.sampling_params, prompt_logprobs=None),
        num_replayed=len(token_ids),
    )


def _embedding(request: EncodeRequest, output: TokenOutput) -> EmbeddingOutput:
    if output.embedding is None:
        raise RequestAbortedError("the request was aborted before its embedding was made")
    return EmbeddingOutput(request.request_id, request.prompt_token_ids, output.embedding, output.num_cached_tokens)


def _computes_the_same(now: ModelFacts, before: ModelFacts, request: EngineRequest) -> bool:
    """Whether an engine may go on with a request that began in another one."""
    if now.fingerprint != before.fingerprint:
        return False
    limit = before.max_model_len
    if isinstance(request, GenerateRequest) and request.sampling_params.max_tokens is not None:
        limit = min(limit, len(request.prompt_token_ids) + request.sampling_params.max_tokens)
    return now.max_model_len >= limit
