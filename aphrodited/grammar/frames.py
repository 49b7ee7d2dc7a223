"""Frames on a pipe: four bytes, the length in little-endian order, and so many bytes. Knows nothing of what is in them."""

from __future__ import annotations

import os
import select
import time
from typing import BinaryIO

_HEAD_SIZE = 4
_CHUNK_SIZE = 65536


class PipeEndedError(Exception):
    """The other end closed the pipe, or sent nothing in time."""


def frame(content: bytes) -> bytes:
    return len(content).to_bytes(_HEAD_SIZE, "little") + content


def read_frame(pipe: BinaryIO) -> bytes | None:
    """The next frame of a blocking pipe; None at its end."""
    head = pipe.read(_HEAD_SIZE)
    return pipe.read(int.from_bytes(head, "little")) if len(head) == _HEAD_SIZE else None


def receive_frame(fd: int, timeout_s: float) -> bytes:
    """The next frame within so many seconds. Raises PipeEndedError."""
    deadline_s = time.monotonic() + timeout_s
    size = int.from_bytes(_receive(fd, _HEAD_SIZE, deadline_s), "little")
    return _receive(fd, size, deadline_s)


def _receive(fd: int, size: int, deadline_s: float) -> bytes:
    received = b""
    while len(received) < size:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))
        if not ready:
            raise PipeEndedError("no answer in time")
        chunk = os.read(fd, min(size - len(received), _CHUNK_SIZE))
        if not chunk:
            raise PipeEndedError("the process ended")
        received += chunk
    return received
