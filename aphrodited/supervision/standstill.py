"""Notices an event loop that stands still: the second pair of eyes beside the monitor, and the monitor's only one.

Judges pages by the caller's clock and keeps what it saw; sends no signals. If the caller itself slept for long it
gives no verdict and begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aphrodited.page import Page

START_LIMIT_S = 60.0
"""From the worker's execution to its first page."""

OVERSLEPT_S = 5.0


@dataclass(slots=True)
class _Seen:
    pid: int
    num_ticks: int
    since_s: float


class StandstillWatch:
    """How long each program's page has not changed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._looked_at_s = clock()

    def begin_round(self) -> None:
        """Call before the looks of one round, at least every OVERSLEPT_S."""
        now_s = self._clock()
        if now_s - self._looked_at_s > OVERSLEPT_S:
            self._seen.clear()
        self._looked_at_s = now_s

    def look(
        self, program: str, pid: int, page: Page | None, limit_s: float, *, is_stopped: bool = False
    ) -> str | None:
        """A sentence if the program has stood still for too long, else None.

        page: of this very process, None while it has none.  limit_s: unless the page itself allows more.
        is_stopped: by a signal (state T); it will write no page then.
        """
        now_s = self._clock()
        num_ticks = page.num_ticks if page else -1
        seen = self._seen.get(program)
        if seen is None or (seen.pid, seen.num_ticks) != (pid, num_ticks):
            self._seen[program] = _Seen(pid, num_ticks, now_s)
            return None
        still_s = now_s - seen.since_s
        if page is None and is_stopped:
            return f"was stopped {still_s:.0f} s ago, before it did anything" if still_s > limit_s else None
        if page is None:
            return f"wrote no page in {still_s:.0f} s" if still_s > START_LIMIT_S else None
        if still_s <= max(limit_s, page.allowance_s):
            return None
        return f"its event loop stood still for {still_s:.0f} s"

    def forget(self, program: str) -> None:
        """The program is not to be judged now."""
        self._seen.pop(program, None)
