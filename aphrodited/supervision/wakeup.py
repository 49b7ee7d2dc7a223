"""Makes Supervisor's loop answer at once: a self-pipe among its sockets, written at signals and on demand.

Its loop sleeps up to a second in poll(2), which no signal interrupts for long (PEP 475); a byte in this pipe does.
Also the loop's heartbeat for others: `on_loop` is called in every round. Knows nothing of processes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


class Wakeup:
    """A dispatcher as Supervisor's loop expects them; made in the main thread."""

    closed = False

    def __init__(self, on_loop: Callable[[], None]) -> None:
        """on_loop must not raise: it runs in the middle of Supervisor's loop."""
        self._on_loop = on_loop
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._read_fd

    def wake(self) -> None:
        """Let the loop go round once more without sleeping."""
        try:
            os.write(self._write_fd, b"\0")
        except BlockingIOError:
            return  # full: it will wake up anyway

    def readable(self) -> bool:
        self._on_loop()
        return True

    def writable(self) -> bool:
        return False

    def handle_read_event(self) -> None:
        try:
            while os.read(self._read_fd, 4096):
                continue
        except BlockingIOError:
            return

    def handle_write_event(self) -> None:
        raise AssertionError("never writable")

    def handle_error(self) -> None:
        """Called in an except block, where nothing of ours can have failed."""
        raise

    def close(self) -> None:
        """The descriptors end with the process."""
