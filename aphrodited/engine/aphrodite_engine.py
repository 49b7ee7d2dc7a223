"""AphroditeEngine: the synchronous engine behind interfaces.EngineBackend.

`step` is state in, outputs out: no sockets, no asyncio, no clock, no text. What computes is a Runner, handed in by
engine.factory or engine.null_backend; this module loads no torch.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

from aphrodited.engine.pooling import Pooled
from aphrodited.engine.scheduler import ScheduledBatch, Scheduler
from aphrodited.engine.sequence import Sequence
from aphrodited.errors import ContextLengthError, RequestError
from aphrodited.flight import FINGERPRINT_SIZE
from aphrodited.grammar.grammars import Grammars
from aphrodited.interfaces import EngineStats, ModelFacts, StepPlan
from aphrodited.outputs import TokenOutput
from aphrodited.request import EncodeRequest, EngineRequest, GenerateRequest, Pooling
from aphrodited.sampling.sampled import Sampled
from aphrodited.sampling_params import MAX_SEED, SamplingParams

MAX_PROMPT_LOGPROBS = 1_000_000
"""Log-probabilities of one prompt, alternatives included: about 15 MB on their way to the client."""

IDLE_WAIT_S = 0.005
"""How long a step sleeps that has nothing to compute until a grammar is compiled: new requests are seen after it."""

WARM_UP_TOKENS = 24  # a prompt longer than one block of the usual size


class Runner(Protocol):
    """Computes batches."""

    def execute(self, batch: ScheduledBatch, on_progress: Callable[[], None]) -> Iterable[Sampled | Pooled]:
        """One result for each entry that reaches its sequence's end, in order: Pooled if the sequence has a pooler.

        Raises if the engine is lost.
        """
        ...

    def close(self) -> None: ...


class AphroditeEngine:
    """One model's engine. One thread calls every method. grammars: None if answers cannot be constrained."""

    def __init__(
        self, facts: ModelFacts, scheduler: Scheduler, runner: Runner, grammars: Grammars | None = None
    ) -> None:
        self.facts = facts
        self.on_plan: Callable[[StepPlan], None] | None = None
        self.on_progress: Callable[[], None] | None = None
        self._scheduler = scheduler
        self._runner = runner
        self._grammars = grammars
        self._arrivals = itertools.count()

    def add_request(self, key: int, request: EngineRequest) -> None:
        """Accept a request under a key that is unique in this engine's life.

        Raises RequestError (bad parameter, too long, queue full); then nothing was accepted.
        """
        seed = None
        if isinstance(request, EncodeRequest):
            check_encode_request(request, self.facts)
        else:
            check_request(request, self.facts)
            seed = request.sampling_params.seed
        sequence = Sequence(
            key,
            request,
            seed=secrets.randbelow(MAX_SEED + 1) if seed is None else seed,
            arrival=next(self._arrivals),
            eos_token_ids=self.facts.eos_token_ids,
            max_model_len=self.facts.max_model_len,
            vocab_size=self.facts.vocab_size,
        )
        grammar = sequence.params.grammar
        if grammar is not None and self._grammars is None:
            raise RequestError(
                f"{grammar.param}: this engine cannot constrain answers", param=grammar.param, code="grammar_unavailable"
            )
        self._scheduler.add(sequence)
        if grammar is not None and self._grammars is not None:
            num_own_tokens = sequence.num_prompt_tokens - sequence.num_replayed
            sequence.constraint = self._grammars.begin(grammar, sequence.token_ids[num_own_tokens:])

    def abort_request(self, key: int) -> bool:
        """End a request at once, without a further TokenOutput. False if the key is unknown or finished."""
        return self._scheduler.abort(key)

    def step(self) -> list[TokenOutput]:
        """Run one batch and return what it made; [] if there is nothing to do. An exception: this engine is lost."""
        ended = self._scheduler.follow_grammars()
        batch = self._scheduler.schedule()
        if not batch.entries:
            if self._grammars is not None and not ended and self.has_unfinished_requests():
                self._grammars.wait(IDLE_WAIT_S)
            return ended
        if self.on_plan is not None:
            self.on_plan(_plan_of(batch))
        sampled = self._runner.execute(batch, self._tick)
        return ended + self._scheduler.update(batch, sampled)

    def has_unfinished_requests(self) -> bool:
        return self._scheduler.has_unfinished_sequences()

    def stats(self) -> EngineStats:
        return self._scheduler.stats()

    def warm_up(self) -> None:
        """Run a small prompt and two tokens, so that kernels are compiled and memory is touched; leaves no trace."""
        num_tokens = min(WARM_UP_TOKENS, self.facts.max_model_len - 2)
        params = SamplingParams(seed=0, top_p=0.9, max_tokens=2, ignore_eos=True)
        self.add_request(-1, GenerateRequest("warm-up", [0] * max(1, num_tokens), params))
        while self.has_unfinished_requests():
            self.step()
        self._scheduler.reset()

    def close(self) -> None:
        """Release memory. No other method is called afterwards."""
        self._runner.close()
        if self._grammars is not None:
            self._grammars.close()

    def _tick(self) -> None:
        if self.on_progress is not None:
            self.on_progress()


def _plan_of(batch: ScheduledBatch) -> StepPlan:
    entries = batch.entries
    return StepPlan(
        batch.num_tokens,
        len(entries),
        [entry.sequence.fingerprint for entry in entries],
        [entry.start + entry.num_tokens for entry in entries],
    )


def check_encode_request(request: EncodeRequest, facts: ModelFacts) -> None:
    """Raise RequestError for whatever this model cannot embed."""
    prompt = request.prompt_token_ids
    if not facts.embedding_size:
        raise RequestError(f"the model {facts.name} gives no embeddings", param="model", code="embeddings_not_supported")
    if request.pooling not in list(Pooling):
        raise RequestError(f"pooling must be one of {', '.join(Pooling)}", param="pooling")
    if not prompt:
        raise RequestError("the prompt is empty: at least one token is needed", param="prompt")
    if len(prompt) > facts.max_model_len:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens; it may have {facts.max_model_len}", param="prompt"
        )
    _check_token_ids(prompt, facts, "prompt")
    _check_quarantine(request)


def check_request(request: GenerateRequest, facts: ModelFacts) -> None:
    """Raise RequestError for whatever this model cannot do."""
    params, prompt = request.sampling_params, request.prompt_token_ids
    params.validate()
    if not prompt:
        raise RequestError("the prompt is empty: at least one token is needed", param="prompt")
    if len(prompt) >= facts.max_model_len:
        raise ContextLengthError(
            f"the prompt has {len(prompt)} tokens; prompt and answer together may have {facts.max_model_len}", param="prompt"
        )
    _check_token_ids(prompt, facts, "prompt")
    _check_token_ids(params.stop_token_ids, facts, "stop_token_ids")
    _check_token_ids(params.allowed_token_ids or (), facts, "allowed_token_ids")
    _check_token_ids(tuple(params.logit_bias or ()), facts, "logit_bias")
    for word in params.bad_words_token_ids:
        _check_token_ids(word, facts, "bad_words")
    if params.prompt_logprobs is not None and len(prompt) * (params.prompt_logprobs + 1) > MAX_PROMPT_LOGPROBS:
        raise RequestError(
            f"prompt_logprobs of {len(prompt)} tokens are too many; ask for fewer alternatives", param="prompt_logprobs"
        )
    if not 0 <= request.num_replayed < len(prompt):
        raise RequestError(
            f"num_replayed must be 0 or more and less than the {len(prompt)} prompt tokens", param="num_replayed"
        )
    if params.max_tokens is not None and request.num_replayed >= params.max_tokens:
        raise RequestError("num_replayed must be less than max_tokens: nothing is left to generate", param="num_replayed")
    _check_choice(params, facts)
    _check_quarantine(request)


def _check_quarantine(request: EngineRequest) -> None:
    if len(request.fingerprint) not in (0, FINGERPRINT_SIZE):
        raise RequestError(f"fingerprint must have {FINGERPRINT_SIZE} bytes, or none", param="fingerprint")
    if request.alone_until < 0:
        raise RequestError("alone_until must be 0 or more", param="alone_until")


def _check_choice(params: SamplingParams, facts: ModelFacts) -> None:
    """Raise RequestError where bad words and, before min_tokens, whatever would end the answer leave no token."""
    forbidden = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
    if params.min_tokens:
        forbidden.update(params.stop_token_ids, () if params.ignore_eos else facts.eos_token_ids)
    allowed = params.allowed_token_ids
    if len(forbidden) >= facts.vocab_size if allowed is None else forbidden.issuperset(allowed):
        param = "allowed_token_ids" if allowed is not None else "min_tokens" if params.min_tokens else "bad_words"
        raise RequestError(f"{param}: together with the other parameters it leaves no token to choose", param=param)


def _check_token_ids(token_ids: list[int] | tuple[int, ...], facts: ModelFacts, param: str) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < facts.vocab_size):
        raise RequestError(f"{param} must hold token ids from 0 to {facts.vocab_size - 1}", param=param)
