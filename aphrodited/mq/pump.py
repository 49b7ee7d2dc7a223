"""Brings a ZeroMQ socket's messages to the event loop, without a task and without zmq.asyncio.

A socket's descriptor tells of new arrivals only (it is edge-triggered): so each call reads on until nothing is
left, a batch at a time, to let the consumers of what was read run in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

FRAMES_PER_CALL = 16


class SocketPump:
    """Calls `handle` with each frame that arrives, from construction to `close`. Does not own the socket."""

    def __init__(self, socket: zmq.Socket[bytes], handle: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket
        self._handle = handle
        self._closed = False
        self._fd: int = socket.getsockopt(zmq.FD)  # type: ignore[assignment]
        self._loop.add_reader(self._fd, self._read_batch)
        self.kick()

    def kick(self) -> None:
        """Look again soon: to be called after every send on the same socket, which may swallow the signal."""
        self._loop.call_soon(self._read_batch)

    def drain(self) -> None:
        """Handle now whatever has arrived so far."""
        while self._read_one():
            pass

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)

    def _read_batch(self) -> None:
        try:
            for _ in range(FRAMES_PER_CALL):
                if not self._read_one():
                    return
        except BaseException:
            self.kick()  # the signal for what is left has been used up
            raise
        self.kick()

    def _read_one(self) -> bool:
        if self._closed:
            return False
        try:
            frame = self._socket.recv(zmq.DONTWAIT)
        except zmq.Again:
            return False
        self._handle(frame)
        return True
