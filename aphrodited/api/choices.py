"""Choices: several generations of one request, read as one.

Each generation is pumped by a task of its own, so that waiting can be interrupted (for a keep-alive comment, for
the end of the worker) without ending a generation, and whatever became ready together is taken together.
Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aphrodited.errors import RequestAbortedError
from aphrodited.outputs import FinishReason, RequestOutput, TokenLogprobs


@dataclass(slots=True)
class Delta:
    """What one output of a generation added to choice `index`. prompt_logprobs: with its first output only."""

    index: int
    text: str
    num_tokens: int
    logprobs: list[TokenLogprobs] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    num_cached_tokens: int
    prompt_logprobs: list[TokenLogprobs] | None = None


class Choices:
    """An async context manager: entering starts every generation, leaving ends those that are not finished.

    What waits unread is at most what max_tokens allows each choice.
    """

    def __init__(self, generations: Sequence[AsyncIterator[RequestOutput]]) -> None:
        self._generations = generations
        self._tasks: list[asyncio.Task[None]] = []
        self._ready: list[Delta] = []
        self._error: BaseException | None = None
        self._num_running = len(generations)
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._pump(index, generation))
            for index, generation in enumerate(self._generations)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            self._changed.set()

    async def take(self, timeout_s: float | None = None) -> list[Delta]:
        """What has come since the last call, in order; [] if nothing came in time.

        Raises the error of the first generation that failed, after what came before it was taken.
        """
        if not self._changed.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                return []
        ready, self._ready = self._ready, []
        if not ready and self._error is not None:
            raise self._error
        if self._error is None:
            self._changed.clear()
        return ready

    async def _pump(self, index: int, generation: AsyncIterator[RequestOutput]) -> None:
        is_first = True
        try:
            async for output in generation:
                delta = _delta(index, output)
                if is_first:
                    delta.prompt_logprobs, is_first = output.prompt_logprobs, False
                if delta.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                    break
                self._num_running -= delta.finish_reason is not None
                self._ready.append(delta)
                self._changed.set()
                if delta.finish_reason is not None:
                    return
            self.fail(RequestAbortedError("The request was aborted in the engine before it was finished"))
        except Exception as error:  # noqa: BLE001 -- raised again by `take`, in the task that can answer
            self.fail(error)


def _delta(index: int, output: RequestOutput) -> Delta:
    """A copy: the output may be used again for the next step."""
    choice = output.outputs[0]
    return Delta(
        index,
        choice.new_text,
        len(choice.new_token_ids),
        list(choice.new_logprobs) if choice.new_logprobs is not None else None,
        choice.finish_reason,
        choice.stop_reason,
        output.num_cached_tokens,
    )
