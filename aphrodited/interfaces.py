"""The two seams of aphrodited: EngineBackend below the transport, EngineClient above it.

Whatever sits on either side is handed its collaborator through these, so `api` imports no `mq` and `mq`
imports no `engine`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from aphrodited.outputs import EmbeddingOutput, RequestOutput, TokenOutput
from aphrodited.request import EngineRequest, Pooling
from aphrodited.sampling_params import SamplingParams

PromptInput = str | list[int]


class ModelFacts(msgspec.Struct, frozen=True):
    """What a client must know of an engine's model. Engines with equal fingerprints give equal tokens.

    embedding_size: numbers in an embedding; 0 if the engine gives none.  nondeterminism: why `deterministic` is false.
    """

    name: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    block_size: int
    num_blocks: int
    max_num_seqs: int
    dtype: str
    fingerprint: str
    deterministic: bool
    backend: str
    embedding_size: int = 0
    nondeterminism: str = ""


class EngineStats(msgspec.Struct, frozen=True):
    """Counters since the engine started and gauges of this moment."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks_used: int = 0
    num_blocks_total: int = 0
    num_prompt_tokens: int = 0  # computed or taken from the cache
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_preemptions: int = 0
    num_steps: int = 0


class StepPlan(msgspec.Struct, frozen=True):
    """The batch a backend is about to run: `num_tokens` rows over `num_seqs` sequences.

    fingerprints: of each sequence's request.  num_computed: how many of its tokens will be computed after the step.
    """

    num_tokens: int
    num_seqs: int
    fingerprints: list[bytes] = []
    num_computed: list[int] = []


class EngineBackend(Protocol):
    """A synchronous engine. One thread calls every method; none blocks but `step`."""

    facts: ModelFacts

    on_plan: Callable[[StepPlan], None] | None
    """Called by `step` before it computes, so that its caller can set a deadline."""

    on_progress: Callable[[], None] | None
    """Called by `step` several times while it computes: cheap proof that it is not stuck."""

    def add_request(self, key: int, request: EngineRequest) -> None:
        """Accept a request under a key that is unique in this engine's life.

        Raises RequestError (bad parameter, too long, queue full); then nothing was accepted.
        """
        ...

    def abort_request(self, key: int) -> bool:
        """End a request at once, without a further TokenOutput. False if the key is unknown or finished."""
        ...

    def step(self) -> list[TokenOutput]:
        """Run one batch and return what it made; [] if there is nothing to do.

        An exception means that this engine is lost. A failure of one request is a TokenOutput with
        FinishReason.ERROR.
        """
        ...

    def has_unfinished_requests(self) -> bool: ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None:
        """Release memory and threads. No other method is called afterwards."""
        ...


class TokenSource(Protocol):
    """The outputs of one request, as they come from its engine."""

    async def get(self) -> TokenOutput:
        """What has come since the last call, as one output; the last one has a finish_reason.

        Raises the error that ended the request, after what came before it was taken.
        """
        ...


class EngineClient(Protocol):
    """An asynchronous view of one model's engine, the same over ZeroMQ and in process."""

    @property
    def is_running(self) -> bool:
        """Attached to a live engine that takes requests."""
        ...

    @property
    def errored(self) -> bool:
        """The last known engine is dead and no other has been attached yet."""
        ...

    @property
    def dead_error(self) -> BaseException:
        """The error that describes the last death; meaningful while `errored`."""
        ...

    @property
    def facts(self) -> ModelFacts | None:
        """Of the engine attached now or last; None before the first."""
        ...

    async def wait_until_running(self, timeout_s: float) -> bool:
        """Wait for `is_running`, at most so long; returns it."""
        ...

    def generate(
        self, prompt: PromptInput, sampling_params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncIterator[RequestOutput]:
        """Yield the answer as it grows; the last RequestOutput has `finished` set.

        Closing the iterator, or cancelling the task that runs it, aborts the request in the engine.
        Raises RequestError, and EngineError: MQEngineDeadError, OutputLostError, EngineStartingError, EngineStoppingError,
        RequestAbortedError, MQClientClosedError.
        """
        ...

    def open(self, request: EngineRequest) -> AbstractAsyncContextManager[TokenSource]:
        """Submit a request as it is, for a caller that puts the answer together itself.

        Leaving the block aborts the request in the engine, unless it has ended. Raises what `generate` raises.
        """
        ...

    async def encode(
        self,
        prompt: PromptInput,
        request_id: str,
        *,
        pooling: str = Pooling.LAST,
        normalize: bool = True,
        priority: int = 0,
    ) -> EmbeddingOutput:
        """The prompt's embedding; see EncodeRequest for the options.

        Cancelling the task that awaits it aborts the request in the engine. Raises what `generate` raises, and
        RequestAbortedError if somebody else aborted it.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End every request of this client with that label. Harmless if there is none."""
        ...

    async def check_health(self) -> None:
        """Return if the engine answers; raise its `dead_error` (or EngineStartingError) if not."""
        ...

    async def do_log_stats(self) -> None:
        """Ask the engine to log its statistics now."""
        ...

    def close(self) -> None:
        """Release every resource; every later call raises MQClientClosedError. Idempotent."""
        ...
