"""Who may start a generation now, who waits for an engine, and what happens to both when the worker stops.

Requests are held, in a queue bounded by number and size, while the model's engine is not running but is due within the
hold timeout; otherwise they are refused at once with the time of the next start. That holds for new ones and for those
that have lost their engine.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from aphrodited.api.error_responses import DeadlineExceededError, EngineUnavailableError, ShuttingDownError
from aphrodited.api.served_model import ServedModel
from aphrodited.interfaces import ModelFacts

MAX_HELD_BYTES = 64 * 1024**2
RECHECK_S = 0.5
"""Pause after which a held request looks again whether its engine is still to be expected."""


class Running(Protocol):
    """What a request has in the engine."""

    def fail(self, error: BaseException) -> None:
        """End it with `error`."""
        ...


class Admission:
    """The generations of this worker: those held, those running, and the order to stop."""

    def __init__(
        self,
        hold_timeout_s: float,
        max_held: int,
        deadline_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hold_timeout_s = hold_timeout_s
        self._deadline_s = deadline_s or math.inf
        self._max_held = max_held
        self._clock = clock
        self._running: set[Running] = set()
        self._is_stopping = False
        self.num_held = 0
        self.held_bytes = 0

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def stop(self) -> None:
        """Refuse what is held and what is new; let what runs go on."""
        self._is_stopping = True

    def end_running(self) -> int:
        """End every running generation with ShuttingDownError; returns their number."""
        self._is_stopping = True
        for running in self._running:
            running.fail(ShuttingDownError("The server stopped before this request was finished"))
        return len(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def check_open(self) -> None:
        """Raises ShuttingDownError if the worker takes no more requests."""
        if self._is_stopping:
            raise ShuttingDownError("The server is shutting down")

    @contextmanager
    def running(self, work: Running, arrived_at_s: float) -> Iterator[None]:
        """Count `work` as running for the length of the block. It fails at the deadline, whatever engine it is in."""
        self._running.add(work)
        left_s = arrived_at_s + self._deadline_s - self._clock()
        timer = None
        if left_s < math.inf:
            timer = asyncio.get_running_loop().call_later(left_s, work.fail, self._overdue())
        try:
            yield
        finally:
            self._running.discard(work)
            if timer is not None:
                timer.cancel()

    async def wait_for_engine(self, model: ServedModel, size: int, arrived_at_s: float) -> ModelFacts:
        """Return the model's facts as soon as its engine takes requests; `size` is the request's in bytes.

        Raises ShuttingDownError, DeadlineExceededError, or EngineUnavailableError if no engine is due in time, the queue is
        full, or the operator keeps the model from new requests. Once held, a request is none of those any more.
        """
        self.check_open()
        model.check_taken()
        deadline_at_s = arrived_at_s + self._deadline_s
        until_s = self._clock() + self._hold_timeout_s
        try:
            return await self._wait(model, size, min(until_s, deadline_at_s), is_new=True)
        except EngineUnavailableError as error:
            if self._clock() >= deadline_at_s:
                raise self._overdue() from error
            raise

    async def wait_to_resume(self, model: ServedModel, size: int, lost_at_s: float) -> ModelFacts:
        """The same for a request that lost its engine at that instant; the end of new work does not concern it.

        Raises EngineUnavailableError, also if an engine runs but the hold time is over.
        """
        until_s = lost_at_s + self._hold_timeout_s
        if self._clock() >= until_s:
            raise self._too_late(model)
        return await self._wait(model, size, until_s, is_new=False)

    async def _wait(self, model: ServedModel, size: int, until_s: float, *, is_new: bool) -> ModelFacts:
        if not model.client.is_running:
            await self._enter(model, size, until_s, is_new=is_new)
        facts = model.client.facts
        assert facts is not None, "a running engine has told its facts"
        return facts

    async def _enter(self, model: ServedModel, size: int, until_s: float, *, is_new: bool) -> None:
        if self.num_held >= self._max_held or self.held_bytes + size > MAX_HELD_BYTES:
            raise model.unavailable("too many requests wait for it already")
        self.num_held += 1
        self.held_bytes += size
        try:
            await self._hold(model, until_s, is_new=is_new)
        finally:
            self.num_held -= 1
            self.held_bytes -= size

    async def _hold(self, model: ServedModel, until_s: float, *, is_new: bool) -> None:
        while True:
            left_s = until_s - self._clock()
            due_in_s = model.availability().due_in_s
            if due_in_s is None or due_in_s > left_s or left_s <= 0:
                raise self._too_late(model)
            if await model.client.wait_until_running(min(left_s, RECHECK_S)):
                return
            if is_new:
                self.check_open()

    def _too_late(self, model: ServedModel) -> EngineUnavailableError:
        return model.unavailable(f"no start is due within the {self._hold_timeout_s:g} s a request may wait")

    def _overdue(self) -> DeadlineExceededError:
        return DeadlineExceededError(f"The answer was not finished within the {self._deadline_s:g} s that it may take")
