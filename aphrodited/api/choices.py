"""Choices: several generations of one request, read as one.

Each generation is pumped by a task of its own, so that waiting can be interrupted (for a keep-alive comment, for
the end of the worker) without ending a generation, and whatever became ready together is taken together. What is
done for every token is kept small here: one timer for the whole of a stream, and a shortcut past the task that reads.
Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from aphrodited.errors import RequestAbortedError
from aphrodited.outputs import FinishReason, RequestOutput, TokenLogprobs


class Delta(msgspec.Struct, gc=False):
    """What one output of a generation added to choice `index`. prompt_logprobs: with its first output only."""

    index: int
    text: str
    num_tokens: int
    logprobs: list[TokenLogprobs] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    num_cached_tokens: int
    prompt_logprobs: list[TokenLogprobs] | None = None


@dataclass(slots=True)
class WholeChoice:
    """Choice `index` as it grows, for an answer that is not streamed."""

    index: int
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.logprobs = extended(self.logprobs, delta.logprobs)
        self.prompt_logprobs = delta.prompt_logprobs or self.prompt_logprobs
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


class Choices:
    """An async context manager: entering starts every generation, leaving ends those that are not finished.

    quiet_s: how long `take` may wait for something; None is without end.
    shortcut: offered what comes while somebody waits in `take`, unless it ends a choice. If it returns True it has dealt
    with it, and `take` goes on waiting: to wake a task for each token costs as much as most of what is done with it.
    What waits unread is at most what max_tokens allows each choice.
    """

    def __init__(
        self,
        generations: Sequence[AsyncIterator[RequestOutput]],
        quiet_s: float | None = None,
        shortcut: Callable[[Delta], bool] | None = None,
    ) -> None:
        self._generations = generations
        self._shortcut = shortcut
        self._quiet_s = quiet_s
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: list[Delta] = []
        self._error: BaseException | None = None
        self._num_running = len(generations)
        self._waiter: asyncio.Future[None] | None = None
        self._taken_at_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        if self._quiet_s is not None:
            self._timer = self._loop.call_later(self._quiet_s, self._end_quiet, self._quiet_s)
        self._tasks = [
            asyncio.create_task(self._pump(index, generation))
            for index, generation in enumerate(self._generations)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def are_finished(self) -> bool:
        """Every generation has ended and everything was taken."""
        return not self._num_running and not self._ready

    def fail(self, error: BaseException) -> None:
        """Make `take` raise `error`; the first one counts."""
        if self._error is None:
            self._error = error
            self._wake()

    async def take(self) -> list[Delta]:
        """What has come since the last call, in order; [] if nothing came for so long as it may be quiet.

        Raises the error of the first generation that failed, after what came before it was taken.
        """
        if not self._ready and self._error is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        self._taken_at_s = self._loop.time()
        ready, self._ready = self._ready, []
        if not ready and self._error is not None:
            raise self._error
        return ready

    def _put(self, delta: Delta) -> None:
        self._ready.append(delta)
        self._wake()

    def _is_dealt_with(self, delta: Delta) -> bool:
        """By the shortcut. Nothing overtakes: while somebody waits, nothing is on the long way."""
        if self._shortcut is None or self._waiter is None or not self._shortcut(delta):
            return False
        self._taken_at_s = self._loop.time()
        return True

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _end_quiet(self, quiet_s: float) -> None:
        """Wake who has waited too long, and look again when whoever waits then will have."""
        left_s = self._taken_at_s + quiet_s - self._loop.time()
        if left_s <= 0:
            self._wake()
            left_s = quiet_s
        self._timer = self._loop.call_later(left_s, self._end_quiet, quiet_s)

    async def _pump(self, index: int, generation: AsyncIterator[RequestOutput]) -> None:
        is_first = True
        try:
            async for output in generation:
                delta = _delta(index, output)
                if is_first:
                    delta.prompt_logprobs, is_first = output.prompt_logprobs, False
                if delta.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                    break
                if delta.finish_reason is not None:
                    self._num_running -= 1
                    self._put(delta)
                    return
                if not self._is_dealt_with(delta):
                    self._put(delta)
            self.fail(RequestAbortedError("The request was aborted in the engine before it was finished"))
        except Exception as error:  # noqa: BLE001 -- raised again by `take`, in the task that can answer
            self.fail(error)


def _delta(index: int, output: RequestOutput) -> Delta:
    """Takes the output's additions, which are its own; what grows with the answer is not kept."""
    choice = output.outputs[0]
    return Delta(
        index,
        choice.new_text,
        len(choice.new_token_ids),
        choice.new_logprobs,
        choice.finish_reason,
        choice.stop_reason,
        output.num_cached_tokens,
    )


def extended(before: list[TokenLogprobs] | None, added: list[TokenLogprobs] | None) -> list[TokenLogprobs] | None:
    """`before` with what was added, either of which may be missing."""
    if before is None or added is None:
        return before if added is None else added
    before.extend(added)
    return before
