"""Packs weights in a thread beside the one that reads the checkpoint. Knows no layout and no model.

Widening a quantised tensor and laying it out for products take about the same time, and neither holds the interpreter's
lock: done side by side, a model is loaded in little more than half of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

MAX_WAITING = 4  # weights that are read and not packed yet: more would hold memory, and gain nothing

_Packed = TypeVar("_Packed")


def pack_at_once(pack: Callable[..., _Packed], *arguments: object) -> Callable[[], _Packed]:
    """What PackingThread.submit does, without a thread."""
    packed = pack(*arguments)
    return lambda: packed


class PackingThread:
    """Packs weights in the order in which they are handed over.

    Leaving its block waits until all are packed, or, after an exception, until nothing is being packed: what weights
    are read from may be gone after that.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "packing")
        self._waiting: deque[Future[Any]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=error is not None)

    def submit(self, pack: Callable[..., _Packed], *arguments: object) -> Callable[[], _Packed]:
        """What waits for pack(*arguments) and returns it, or raises what it raised. Waits here if too many are waiting."""
        while len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft().exception()  # raised by whoever wants the result
        future = self._executor.submit(pack, *arguments)
        self._waiting.append(future)
        return future.result
