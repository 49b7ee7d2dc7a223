"""Accepts connections on a listening socket that several worker processes share.

One connection per wake-up of the event loop, then a short break: a loop that took all that wait, as asyncio's own
servers do, would take them from workers that are idle, or about to be given a core. Accepting pauses for longer
while the process has no file descriptor left.
Knows no HTTP beyond aiohttp's protocol object.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from aphrodited.log import get_logger

BREAK_S = 0.001
"""Leaves the next connection to the other workers; 1000 a second are more than a model can answer."""

PAUSE_S = 0.2
SILENT_PEER_S = 60
"""A peer that acknowledges nothing for so long, or answers no probe, has vanished without a word."""

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = get_logger()


class Listener:
    """Hands every connection accepted on `listening` to a protocol from `make_protocol`.

    The socket stays open after `stop`: other processes go on accepting on it.
    """

    def __init__(self, listening: socket.socket, make_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._openings: set[asyncio.Task[None]] = set()
        self._resume: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._resume = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def stop(self) -> None:
        """Accept no more."""
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._listening.fileno())

    def _accept(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was faster, or the client has gone again
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                raise
            log.warning("accepting_paused", reason=error.strerror, pause_s=PAUSE_S)
            self._rest(PAUSE_S)
            return
        self._rest(BREAK_S)
        opening = self._loop.create_task(self._open(connection))
        self._openings.add(opening)
        opening.add_done_callback(self._openings.discard)

    def _rest(self, duration_s: float) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._resume = self._loop.call_later(duration_s, self.start)

    async def _open(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            _expect_life(connection)
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            connection.close()
            log.info("connection_refused", reason=error.strerror)


def _expect_life(connection: socket.socket) -> None:
    """Have the kernel end a connection whose peer lost power or network, see tcp(7)."""
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_PEER_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_PEER_S * 1000)
