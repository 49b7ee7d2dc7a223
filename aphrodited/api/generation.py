"""Runs one request's generations and writes its answer, streamed or whole.

    planned ──▶ held until the engine runs ──▶ running ──▶ answered
                      │                          │  (resume carries it from engine to engine)
                      ▼                          ▼
                plain HTTP error       plain error before the first byte, an error event after it

Leaving by any way, the client's disappearance (a cancelled handler) included, ends every generation.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from aiohttp import web

from aphrodited.api.admission import Admission
from aphrodited.api.answers import Answer, Usage
from aphrodited.api.choices import Choices, Delta, WholeChoice, extended
from aphrodited.api.error_responses import answer_for
from aphrodited.api.notes import NOTES
from aphrodited.api.resume import Resumer
from aphrodited.api.served_model import ServedModel
from aphrodited.api.sse import DONE, KEEP_ALIVE, STALL_TIMEOUT_S, EventStream
from aphrodited.interfaces import ModelFacts
from aphrodited.log import get_logger
from aphrodited.metrics import ApiMetrics
from aphrodited.outputs import RequestOutput, TokenLogprobs
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import SamplingParams

log = get_logger()

METRICS_LAG_S = 1.0
"""How long counts of a request under way may take to be seen in the metrics: writing them for each token costs more
than the token."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request asks of the engine: choice i continues prompt i // n.  facts: what it was checked against.

    fingerprints: of each prompt; none if nobody judges them.
    """

    request_id: str
    model: ServedModel
    facts: ModelFacts
    prompts: Sequence[list[int]]
    params: Sequence[SamplingParams]
    num_choices_per_prompt: int = 1
    priority: int = 0
    fingerprints: Sequence[bytes] = ()

    def requests(self) -> Iterator[GenerateRequest]:
        """One for each choice."""
        for index, params in enumerate(self.params):
            label = self.request_id if len(self.params) == 1 else f"{self.request_id}-{index}"
            which = index // self.num_choices_per_prompt
            fingerprint = self.fingerprints[which] if self.fingerprints else b""
            yield GenerateRequest(label, self.prompts[which], params, self.priority, fingerprint=fingerprint)


@dataclass(slots=True)
class Tally:
    """Counts what a request costs and when its tokens came, into its usage at once and into the metrics now and then."""

    plan: Plan
    metrics: ApiMetrics
    arrived_at_s: float
    usage: Usage
    _last_at_s: dict[int, float] = field(default_factory=dict)  # of each choice's tokens
    _gaps_s: list[float] = field(default_factory=list)  # not written yet
    _num_written: int = 0
    _write_at_s: float = 0.0

    def __post_init__(self) -> None:
        self.usage.num_prompt_tokens = sum(len(prompt) for prompt in self.plan.prompts)
        self.metrics.prompt_tokens(self.plan.model.name, self.usage.num_prompt_tokens)

    def count(self, deltas: list[Delta]) -> None:
        now_s = time.monotonic()
        if not self._last_at_s:
            self.metrics.first_token(self.plan.model.name, now_s - self.arrived_at_s)
            self._write_at_s = now_s + METRICS_LAG_S
        for delta in deltas:
            self.usage.num_completion_tokens += delta.num_tokens
            last_at_s = self._last_at_s.get(delta.index)
            if last_at_s is None:
                if delta.index % self.plan.num_choices_per_prompt == 0:
                    self.usage.num_cached_tokens += delta.num_cached_tokens
            elif delta.num_tokens and now_s > last_at_s:
                self._gaps_s.append((now_s - last_at_s) / delta.num_tokens)
            self._last_at_s[delta.index] = now_s
        if now_s >= self._write_at_s:
            self._write()
            self._write_at_s = now_s + METRICS_LAG_S

    def close(self) -> None:
        """Nothing more will come."""
        self._write()

    def _write(self) -> None:
        model = self.plan.model.name
        self.metrics.completion_tokens(model, self.usage.num_completion_tokens - self._num_written)
        self._num_written = self.usage.num_completion_tokens
        if self._gaps_s:
            self.metrics.inter_tokens(model, self._gaps_s)
            self._gaps_s.clear()


@dataclass(frozen=True, slots=True)
class Generator:
    """Answers plans. One for the worker's life."""

    admission: Admission
    metrics: ApiMetrics
    resumer: Resumer
    keepalive_s: float
    stall_timeout_s: float = STALL_TIMEOUT_S

    def generations(self, plan: Plan) -> list[AsyncIterator[RequestOutput]]:
        return [self.resumer.generate(plan.model, request, plan.facts) for request in plan.requests()]

    def tally(self, plan: Plan, request: web.Request) -> Tally:
        notes = request[NOTES]
        return Tally(plan, self.metrics, notes.arrived_at_s, notes.usage)

    async def answer_whole(self, request: web.Request, plan: Plan, answer: Answer) -> web.Response:
        """Raises AphroditeError."""
        tally = self.tally(plan, request)
        wholes = [WholeChoice(index) for index in range(len(plan.params))]
        async with Choices(self.generations(plan)) as choices:
            with closing(tally), self.admission.running(choices, tally.arrived_at_s):
                while not choices.are_finished:
                    deltas = await choices.take()
                    tally.count(deltas)
                    for delta in deltas:
                        wholes[delta.index].add(delta)
        return web.Response(body=answer.whole(wholes, tally.usage), content_type="application/json")

    async def answer_stream(
        self, request: web.Request, plan: Plan, answer: Answer, include_usage: bool
    ) -> web.StreamResponse:
        """Raises AphroditeError while nothing was sent, ConnectionError if the client is gone."""
        tally = self.tally(plan, request)
        stream = EventStream(request, self.stall_timeout_s)
        delivery = Delivery(stream, Script(answer, len(plan.params)), tally)
        try:
            async with Choices(self.generations(plan), self.keepalive_s, delivery.shortcut) as choices:
                with closing(tally), self.admission.running(choices, tally.arrived_at_s):
                    while not choices.are_finished:
                        await delivery.deliver(await choices.take())
            tail = answer.chunks.usage(tally.usage) if include_usage else b""
            await stream.send(tail + DONE)
            await stream.end()
        except ConnectionError:
            raise
        except Exception as error:
            if not stream.has_started:
                raise
            failure = answer_for(error)
            request[NOTES].error_status = failure.status
            if failure.status == 500:
                log.exception("stream_failed", request_id=plan.request_id, model=plan.model.name)
            await stream.fail(failure)
        return stream.response


@dataclass(frozen=True, slots=True)
class Delivery:
    """Brings what became ready to the client of one stream."""

    stream: EventStream
    script: Script
    tally: Tally

    async def deliver(self, deltas: list[Delta]) -> None:
        """Nothing is a sign of life. Raises ConnectionError if the client is gone."""
        if not deltas:
            await self.stream.send(KEEP_ALIVE)
            return
        self.tally.count(deltas)
        events = self.script.events(deltas)
        if events:
            await self.stream.send(events)

    @property
    def shortcut(self) -> Callable[[Delta], bool] | None:
        """See Choices. Several choices go the long way, so that what became ready together is one write."""
        return self._deliver_now if self.script.num_choices == 1 else None

    def _deliver_now(self, delta: Delta) -> bool:
        if not self.stream.has_room:
            return False
        deltas = [delta]
        self.tally.count(deltas)
        events = self.script.events(deltas)
        if events:
            self.stream.send_now(events)
        return True


class Script:
    """Writes the events of one stream: openings first, then additions, each choice's closing once.

    Log-probabilities of tokens whose text is still held back wait for that text.
    """

    def __init__(self, answer: Answer, num_choices: int) -> None:
        self._answer = answer
        self.num_choices = num_choices
        self._has_opened = False
        self._held: dict[int, list[TokenLogprobs]] = {}  # log-probabilities, by choice

    def events(self, deltas: list[Delta]) -> bytes:
        """The events of what became ready together, for one write."""
        answer = self._answer
        parts = []
        if not self._has_opened:
            self._has_opened = True
            parts += [answer.opening(index) for index in range(self.num_choices)]
        for delta in deltas:
            index, logprobs = delta.index, delta.logprobs
            if delta.prompt_logprobs is not None:
                parts.append(answer.prompt(index, delta.prompt_logprobs))
            if self._held:
                logprobs = extended(self._held.pop(index, None), logprobs)
            if delta.text or (delta.finish_reason is not None and logprobs):
                parts.append(answer.addition(index, delta.text, logprobs))
            elif logprobs is not None:
                self._held[index] = logprobs
            if delta.finish_reason is not None:
                parts.append(answer.chunks.closing(index, delta.finish_reason, delta.stop_reason))
        return b"".join(parts)
