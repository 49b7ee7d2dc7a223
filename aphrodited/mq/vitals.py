"""What an engine tells about itself: its progress page, its flight record, heartbeats, lines of statistics.

The page is written by the step loop itself, never by a helper thread: it proves that the loop moves, or that it
does not.

    moment                          page
    promotion, end of a step        phase READY, has_work as it is
    a step begins                   phase STEPPING and the standstill this batch may have
    inside a step                   a tick
    idle                            a tick each second
    leaving                         phase DRAINING, within steps too
    failing                         phase FAILED with the cause

The flight record names the requests of the step under way, or the one that is being taken in; it still does when they end
the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq

from aphrodited.flight import UNKNOWN, FlightRecorder
from aphrodited.interfaces import EngineBackend, EngineStats, StepPlan
from aphrodited.log import get_logger
from aphrodited.mq.codec import encode
from aphrodited.mq.messages import Heartbeat
from aphrodited.mq.pace import StepPace
from aphrodited.page import PageWriter, Phase
from aphrodited.request import EngineRequest

log = get_logger()

TICK_S = 1.0


class Vitals:
    """Signs of life of one engine. Called by the engine's thread only.

    heartbeat_s, stats_log_s: pauses between heartbeats and lines of statistics (0: no lines).
    flight: None if nobody judges this engine's death.
    """

    def __init__(
        self,
        backend: EngineBackend,
        page: PageWriter,
        generation: int,
        health: zmq.Socket[bytes],
        *,
        pace: StepPace,
        heartbeat_s: float,
        stats_log_s: float,
        flight: FlightRecorder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._page = page
        self._generation = generation
        self._health = health
        self._pace = pace
        self._heartbeat_s = heartbeat_s
        self._stats_log_s = stats_log_s
        self._flight = flight
        self._clock = clock
        self._between_steps = Phase.READY
        self._plan: StepPlan | None = None
        self._step_began_at_s = 0.0
        self._heartbeat_due_s = clock()
        self._stats_due_s = clock() + stats_log_s
        self._logged_steps = 0
        backend.on_plan = self._step_begins
        backend.on_progress = page.tick

    def request_comes(self, request: EngineRequest) -> None:
        """It is about to be given to the backend."""
        if self._flight is not None:
            self._flight.begin([request.fingerprint or UNKNOWN], [len(request.prompt_token_ids)])

    def request_taken(self) -> None:
        """The backend has taken or refused it, and lives."""
        if self._flight is not None:
            self._flight.end()

    def _step_begins(self, plan: StepPlan) -> None:
        if self._flight is not None:
            self._flight.begin(plan.fingerprints, plan.num_computed)
        self._plan = plan
        self._step_began_at_s = self._clock()
        phase = Phase.STEPPING if self._between_steps is Phase.READY else self._between_steps
        self._page.update(phase=phase, has_work=True, allowance_s=self._pace.allowance_s(plan))

    def step_ended(self) -> None:
        if self._flight is not None:
            self._flight.end()
        if self._plan is not None:
            self._pace.observe(self._plan, self._clock() - self._step_began_at_s)
            self._plan = None
        self.write_page()

    def write_page(self) -> None:
        stats = self._backend.stats()
        self._page.update(
            phase=self._between_steps,
            generation=self._generation,
            has_work=self._backend.has_unfinished_requests(),
            allowance_s=0.0,
            num_steps=stats.num_steps,
            num_finished=stats.num_finished,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_blocks_used=stats.num_blocks_used,
            num_blocks_total=stats.num_blocks_total,
            num_prompt_tokens=stats.num_prompt_tokens,
            num_generated_tokens=stats.num_generated_tokens,
            num_preemptions=stats.num_preemptions,
        )

    def write_draining(self) -> None:
        self._between_steps = Phase.DRAINING
        self.write_page()

    def write_failure(self, cause: str) -> None:
        self._page.update(phase=Phase.FAILED, message=cause)

    def seconds_to_next(self) -> float:
        """How long an idle loop may sleep: until the next heartbeat or tick, whichever is first."""
        return min(TICK_S, max(0.0, self._heartbeat_due_s - self._clock()))

    def publish_if_due(self) -> None:
        """Heartbeat and statistics, each at its own pace."""
        now_s = self._clock()
        if now_s >= self._heartbeat_due_s:
            self._heartbeat_due_s = now_s + self._heartbeat_s
            self._health.send(encode(Heartbeat(self._generation, self._backend.stats())), zmq.DONTWAIT)
        if self._stats_log_s and now_s >= self._stats_due_s:
            self._stats_due_s = now_s + self._stats_log_s
            stats = self._backend.stats()
            if stats.num_steps != self._logged_steps:
                self.log_stats(stats)

    def log_stats(self, stats: EngineStats) -> None:
        self._logged_steps = stats.num_steps
        log.info(
            "stats_reported",
            generation=self._generation,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_blocks_used=stats.num_blocks_used,
            num_blocks_total=stats.num_blocks_total,
            num_prompt_tokens=stats.num_prompt_tokens,
            num_cached_tokens=stats.num_cached_tokens,
            num_generated_tokens=stats.num_generated_tokens,
            num_finished=stats.num_finished,
            num_aborted=stats.num_aborted,
            num_preemptions=stats.num_preemptions,
        )
