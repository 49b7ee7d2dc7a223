"""A progress bar on stderr, if that is a terminal. Knows nothing of what advances."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

WIDTH = 30
INTERVAL_S = 0.1


class ProgressBar:
    """A context manager; cheap enough to be advanced inside a measurement."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = total
        self._count = 0
        self._is_shown = sys.stderr.isatty()
        self._began_at_s = self._drawn_at_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def advance(self) -> None:
        self._count += 1
        if self._is_shown:
            now_s = time.monotonic()
            if now_s - self._drawn_at_s >= INTERVAL_S:
                self._drawn_at_s = now_s
                self._draw(now_s - self._began_at_s)

    def _draw(self, elapsed_s: float) -> None:
        filled = WIDTH * self._count // self._total
        bar = "#" * filled + "-" * (WIDTH - filled)
        rate = self._count / elapsed_s
        sys.stderr.write(f"\r{self._label} [{bar}] {self._count}/{self._total} requests, {rate:.1f}/s\x1b[K")
        sys.stderr.flush()
