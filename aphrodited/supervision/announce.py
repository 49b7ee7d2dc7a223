"""Lines for people on the daemon's stderr: the terminal, or the journal.

Never blocks: with a reader that stalls (a paused pager on the pipe) lines are left out and their number is said
later, because whoever writes here also supervises.
"""

from __future__ import annotations

import os
import select

STDERR = 2


class Announcer:
    """Writes whole lines to a file descriptor that may belong to anything."""

    def __init__(self, fd: int = STDERR) -> None:
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self.num_left_out = 0

    def __call__(self, text: str) -> None:
        left_out = f"aphrodited: {self.num_left_out} lines were left out here\n" if self.num_left_out else ""
        if self._write(f"{left_out}aphrodited: {text}\n"):
            self.num_left_out = 0
        else:
            self.num_left_out += 1

    def _write(self, text: str) -> bool:
        data = text.encode("utf-8", "replace")[: select.PIPE_BUF]
        try:
            # A pipe is writable when PIPE_BUF bytes fit, so this write cannot block.
            if not self._poll.poll(0):
                return False
            return os.write(self._fd, data) == len(data)
        except OSError:  # the terminal or the reader is gone
            return False
