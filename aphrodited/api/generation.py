"""Runs one request's generations and writes its answer, streamed or whole.

    planned ──▶ held until the engine runs ──▶ running ──▶ answered
                      │                          │  (resume carries it from engine to engine)
                      ▼                          ▼
                plain HTTP error       plain error before the first byte, an error event after it

Leaving by any way, the client's disappearance (a cancelled handler) included, ends every generation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from aphrodited.api.admission import Admission
from aphrodited.api.answers import Answer, Usage
from aphrodited.api.choices import Choices, Delta
from aphrodited.api.error_responses import answer_for
from aphrodited.api.notes import NOTES
from aphrodited.api.resume import Resumer
from aphrodited.api.served_model import ServedModel
from aphrodited.api.sse import DONE, KEEP_ALIVE, STALL_TIMEOUT_S, EventStream
from aphrodited.interfaces import ModelFacts
from aphrodited.log import get_logger
from aphrodited.metrics import ApiMetrics
from aphrodited.outputs import TokenLogprobs
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import SamplingParams

log = get_logger()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request asks of the engine: choice i continues prompt i // n.  facts: what it was checked against."""

    request_id: str
    model: ServedModel
    facts: ModelFacts
    prompts: Sequence[list[int]]
    params: Sequence[SamplingParams]
    num_choices_per_prompt: int = 1
    priority: int = 0

    def requests(self) -> Iterator[GenerateRequest]:
        """One for each choice."""
        for index, params in enumerate(self.params):
            label = self.request_id if len(self.params) == 1 else f"{self.request_id}-{index}"
            yield GenerateRequest(label, self.prompts[index // self.num_choices_per_prompt], params, self.priority)


@dataclass(slots=True)
class Tally:
    """Counts what a request costs and when its tokens came, into its usage and the metrics."""

    plan: Plan
    metrics: ApiMetrics
    arrived_at_s: float
    usage: Usage
    first_token_at_s: float | None = None
    _last_at_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.usage.num_prompt_tokens = sum(len(prompt) for prompt in self.plan.prompts)
        self.metrics.prompt_tokens(self.plan.model.name, self.usage.num_prompt_tokens)

    def count(self, deltas: list[Delta]) -> None:
        now_s = time.monotonic()
        model = self.plan.model.name
        if self.first_token_at_s is None:
            self.first_token_at_s = now_s
            self.metrics.first_token(model, now_s - self.arrived_at_s)
        num_tokens = 0
        for delta in deltas:
            num_tokens += delta.num_tokens
            last_at_s = self._last_at_s.get(delta.index)
            if last_at_s is None and delta.index % self.plan.num_choices_per_prompt == 0:
                self.usage.num_cached_tokens += delta.num_cached_tokens
            if last_at_s is not None and delta.num_tokens and now_s > last_at_s:
                self.metrics.inter_token(model, (now_s - last_at_s) / delta.num_tokens)
            self._last_at_s[delta.index] = now_s
        self.usage.num_completion_tokens += num_tokens
        self.metrics.completion_tokens(model, num_tokens)


@dataclass(frozen=True, slots=True)
class Generator:
    """Answers plans. One for the worker's life."""

    admission: Admission
    metrics: ApiMetrics
    resumer: Resumer
    keepalive_s: float
    stall_timeout_s: float = STALL_TIMEOUT_S

    def start(self, plan: Plan) -> Choices:
        return Choices([self.resumer.generate(plan.model, request, plan.facts) for request in plan.requests()])

    def tally(self, plan: Plan, request: web.Request) -> Tally:
        notes = request[NOTES]
        return Tally(plan, self.metrics, notes.arrived_at_s, notes.usage)

    async def answer_whole(self, request: web.Request, plan: Plan, answer: Answer) -> web.Response:
        """Raises AphroditeError."""
        tally = self.tally(plan, request)
        texts = [""] * len(plan.params)
        logprobs: list[list[TokenLogprobs] | None] = [None] * len(plan.params)
        prompt_logprobs: list[list[TokenLogprobs] | None] = [None] * len(plan.params)
        endings: list[Delta | None] = [None] * len(plan.params)
        async with self.start(plan) as choices:
            with self.admission.running(choices, tally.arrived_at_s):
                while not choices.are_finished:
                    deltas = await choices.take()
                    tally.count(deltas)
                    for delta in deltas:
                        texts[delta.index] += delta.text
                        logprobs[delta.index] = _joined(logprobs[delta.index], delta.logprobs)
                        prompt_logprobs[delta.index] = delta.prompt_logprobs or prompt_logprobs[delta.index]
                        if delta.finish_reason is not None:
                            endings[delta.index] = delta
        body = answer.whole(
            [
                answer.choice(
                    index,
                    texts[index],
                    logprobs[index],
                    str(ending.finish_reason),
                    ending.stop_reason,
                    prompt_logprobs[index],
                )
                for index, ending in enumerate(endings)
                if ending is not None
            ],
            tally.usage,
        )
        return web.Response(body=body, content_type="application/json")

    async def answer_stream(
        self, request: web.Request, plan: Plan, answer: Answer, include_usage: bool
    ) -> web.StreamResponse:
        """Raises AphroditeError while nothing was sent, ConnectionError if the client is gone."""
        tally = self.tally(plan, request)
        stream = EventStream(request, self.stall_timeout_s)
        try:
            async with self.start(plan) as choices:
                with self.admission.running(choices, tally.arrived_at_s):
                    await self._stream(stream, choices, answer, tally)
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

    async def _stream(self, stream: EventStream, choices: Choices, answer: Answer, tally: Tally) -> None:
        script = Script(answer, len(tally.plan.params))
        while not choices.are_finished:
            deltas = await choices.take(self.keepalive_s)
            if not deltas:
                await stream.send(KEEP_ALIVE)
                continue
            tally.count(deltas)
            events = script.events(deltas)
            if events:
                await stream.send(events)


class Script:
    """Writes the events of one stream: openings first, then additions, each choice's closing once.

    Log-probabilities of tokens whose text is still held back wait for that text.
    """

    def __init__(self, answer: Answer, num_choices: int) -> None:
        self._answer = answer
        self._num_choices = num_choices
        self._has_opened = False
        self._logprobs: dict[int, list[TokenLogprobs] | None] = {}

    def events(self, deltas: list[Delta]) -> bytes:
        """The events of what became ready together, for one write."""
        answer = self._answer
        parts = []
        if not self._has_opened:
            self._has_opened = True
            parts += [answer.opening(index) for index in range(self._num_choices)]
        for delta in deltas:
            if delta.prompt_logprobs is not None:
                parts.append(answer.prompt(delta.index, delta.prompt_logprobs))
            logprobs = _joined(self._logprobs.get(delta.index), delta.logprobs)
            is_last = delta.finish_reason is not None
            if delta.text or (is_last and logprobs):
                parts.append(answer.addition(delta.index, delta.text, logprobs))
                logprobs = None
            self._logprobs[delta.index] = logprobs
            if is_last:
                parts.append(answer.closing(delta.index, str(delta.finish_reason), delta.stop_reason))
        return b"".join(parts)


def _joined(
    before: list[TokenLogprobs] | None, added: list[TokenLogprobs] | None
) -> list[TokenLogprobs] | None:
    if before is None or added is None:
        return before if added is None else added
    before.extend(added)
    return before
