"""Counts what an engine or a client refused, and logs it without letting a flood of it fill the log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from aphrodited.log import get_logger

log = get_logger()

LOG_INTERVAL_S = 10.0


class Refusals:
    """Counters by kind; each kind is logged at most once in ten seconds, with the number since the start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._logged_at_s: dict[str, float] = {}

    def count(self, kind: str, **fields: object) -> None:
        """`kind` is one of a few words of ours; whatever a stranger sent goes into the fields."""
        self.counts[kind] += 1
        now_s = self._clock()
        if now_s - self._logged_at_s.get(kind, float("-inf")) >= LOG_INTERVAL_S:
            self._logged_at_s[kind] = now_s
            log.warning("message_refused", kind=kind, num_refused=self.counts[kind], **fields)
