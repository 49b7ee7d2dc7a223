"""Resumer: carries a request over the end of its engine, so that its client notices a pause and nothing else.

    submitted ──▶ outputs come ──▶ finished
        ▲               │  the engine died or stopped, or its output was lost
        └──── held ◀────┘  until another engine runs, at most hold_timeout_s

Whatever was received, shown or held back, is submitted again behind the prompt, as replayed tokens, and the same
OutputBuilder goes on. Randomness depends on seed and position alone, so a request with a seed gives the bytes that an
undisturbed engine would have given; another engine may only go on if its fingerprint says that it computes the same. A request that gets no further in
MAX_BARREN_LIVES engines in a row is given up: it may be what ends them, and would end all that follow.
Knows no HTTP and no transport.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import msgspec

from aphrodited.api.admission import Admission
from aphrodited.api.error_responses import EngineUnavailableError
from aphrodited.api.served_model import ServedModel
from aphrodited.config.schema import RecoveryConfig
from aphrodited.errors import (
    EngineError,
    EngineStartingError,
    EngineStoppingError,
    MQEngineDeadError,
    OutputLostError,
    QueueFullError,
)
from aphrodited.interfaces import ModelFacts
from aphrodited.log import get_logger
from aphrodited.metrics import ApiMetrics
from aphrodited.outputs import EmbeddingOutput, RequestOutput
from aphrodited.request import EncodeRequest, EngineRequest, GenerateRequest
from aphrodited.tokenizer.detokenizer import OutputBuilder

log = get_logger()

RETRY_S = 0.1
"""Pause before an engine that takes nothing now is asked again."""

MAX_BARREN_LIVES = 2

BYTES_PER_TOKEN = 8  # of what is held

_INTERRUPTED = (MQEngineDeadError, OutputLostError)
_NOT_TAKEN = (EngineStartingError, EngineStoppingError, QueueFullError)


class Resumer:
    """One for a worker's life. With `on_engine_death: fail` every request has one engine and gets its error at once."""

    def __init__(
        self,
        admission: Admission,
        metrics: ApiMetrics,
        recovery: RecoveryConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admission = admission
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
                async with model.client.open(_continued(request, builder.token_ids)) as source:
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
                return await model.client.encode(
                    request.prompt_token_ids,
                    request.request_id,
                    pooling=request.pooling,
                    normalize=request.normalize,
                    priority=request.priority,
                )
            except (*_INTERRUPTED, *_NOT_TAKEN) as error:
                await lives.wait_for_next(error, 0)


class _Lives:
    """One request on its way from engine to engine.

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
        self._num_barren = 0  # engines in a row that died before they added a token

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
            has_progress = self._num_interruptions == 1 or num_tokens > self._num_tokens
            self._num_barren = 0 if has_progress else self._num_barren + 1
        is_new = is_interrupted or self._lost is None or num_tokens > self._num_tokens
        if is_new:
            if isinstance(error, QueueFullError):
                raise error  # no engine has had it: the client may well wait itself
            self._lost, self._lost_at_s, self._num_tokens = error, resumer.clock(), num_tokens
        assert self._lost is not None
        if self._num_barren >= MAX_BARREN_LIVES:
            reason = f"the request got no further in {MAX_BARREN_LIVES} engines it went on in, and may be why they died"
            raise self._model.died(self._lost, reason)
        if self._num_interruptions > resumer.max_resumes:
            raise self._model.died(self._lost, f"the request was resumed {resumer.max_resumes} times already")
        if not is_interrupted:
            await asyncio.sleep(RETRY_S)
        await self._wait(self._lost, num_tokens)
        if is_new:
            self._note(self._lost, num_tokens)

    async def _wait(self, lost: EngineError, num_tokens: int) -> None:
        size = BYTES_PER_TOKEN * (len(self._request.prompt_token_ids) + num_tokens)
        try:
            facts = await self._resumer.admission.wait_to_resume(self._model, size, self._lost_at_s)
        except EngineUnavailableError as error:
            raise self._model.died(lost, str(error)) from error
        if not _computes_the_same(facts, self._facts, self._request):
            raise self._model.died(lost, "the engine that runs now has another model or other settings")

    def _note(self, lost: EngineError, num_tokens: int) -> None:
        self._resumer.metrics.resumed(self._model.name, num_tokens)
        log.info(
            "request_resumed",
            request_id=self._request.request_id,
            model=self._model.name,
            num_interruptions=self._num_interruptions,
            num_replayed=num_tokens,
            waited_s=round(self._resumer.clock() - self._lost_at_s, 3),
            cause=str(lost),
        )


def _continued(request: GenerateRequest, token_ids: list[int]) -> GenerateRequest:
    """The request as it goes on after these tokens of its answer. What comes with a first token has come."""
    if not token_ids:
        return request
    return msgspec.structs.replace(
        request,
        prompt_token_ids=request.prompt_token_ids + token_ids,
        sampling_params=msgspec.structs.replace(request.sampling_params, prompt_logprobs=None),
        num_replayed=len(token_ids),
    )


def _computes_the_same(now: ModelFacts, before: ModelFacts, request: EngineRequest) -> bool:
    """Whether an engine may go on with a request that began in another one."""
    if now.fingerprint != before.fingerprint:
        return False
    limit = before.max_model_len
    if isinstance(request, GenerateRequest) and request.sampling_params.max_tokens is not None:
        limit = min(limit, len(request.prompt_token_ids) + request.sampling_params.max_tokens)
    return now.max_model_len >= limit
