"""Threads that help with one call of a kernel, as far as they come in time.

The caller offers its call to the helpers, makes it itself, and goes on when its own call returns: a helper that got no core
meanwhile is not waited for. So the work must be one of those of `shared_work`, which is over for all when it is over for
one; a late helper, which keeps everything it was handed alive, finds nothing left. Between two calls helpers sleep.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any


class Helper:
    """One thread, for as long as the process lives."""

    def __init__(self, name: str) -> None:
        self._offer: tuple[Callable[..., None], tuple[Any, ...]] | None = None
        self._nothing_offered = threading.Lock()  # held while that is so
        self._nothing_offered.acquire()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def offer(self, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Have work(*arguments) called, instead of what was offered before and is not begun yet. Called by one thread."""
        self._offer = work, arguments
        if self._nothing_offered.locked():
            self._nothing_offered.release()

    def _serve(self) -> None:
        while True:
            self._nothing_offered.acquire()
            offer, self._offer = self._offer, None
            if offer is not None:
                work, arguments = offer
                work(*arguments)
                del offer, work, arguments


@cache
def _helpers(count: int) -> list[Helper]:
    return [Helper(f"helper-{number}") for number in range(count)]


def run_together(num_threads: int, work: Callable[..., None], *arguments: Any) -> None:
    """work(*arguments), by this thread and up to num_threads - 1 others. `work` lets go of the interpreter's lock."""
    for helper in _helpers(num_threads - 1):
        helper.offer(work, arguments)
    work(*arguments)
