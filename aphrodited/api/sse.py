"""Server-sent events on one response: when headers go out, keep-alives, and how long a slow reader is waited for.

Framing as in https://html.spec.whatwg.org/multipage/server-sent-events.html. Knows nothing of what the events say.
"""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from aphrodited.api.error_responses import ErrorAnswer

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
STALL_TIMEOUT_S = 30.0
WRITE_BUFFER_SIZE = 256 * 1024


class ClientStalledError(ConnectionError):
    """The client took no data for so long that it counts as gone."""


class EventStream:
    """The event stream that answers `request`. Headers are sent with the first bytes, so that until then a plain
    error can be answered instead.
    """

    def __init__(self, request: web.Request, stall_timeout_s: float = STALL_TIMEOUT_S) -> None:
        self._request = request
        self._stall_timeout_s = stall_timeout_s
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # asks nginx not to collect the events
            }
        )

    @property
    def has_started(self) -> bool:
        """The headers are out."""
        return self.response.prepared

    async def send(self, events: bytes) -> None:
        """Write whole events, waiting while the client's buffers are full.

        Raises ConnectionError if the client left, or took nothing for the stall timeout.
        """
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                if not self.response.prepared:
                    await self._start()
                await self.response.write(events)
        except TimeoutError as error:
            transport = self._request.transport
            if transport is not None:
                transport.abort()
            raise ClientStalledError(f"the client read nothing for {self._stall_timeout_s:g} s") from error

    async def _start(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.set_write_buffer_limits(high=WRITE_BUFFER_SIZE)
        await self.response.prepare(self._request)

    async def fail(self, answer: ErrorAnswer) -> None:
        """End a stream that has started with an error event."""
        await self.send(b"data: " + answer.body() + b"\n\n" + DONE)
        await self.end()

    async def end(self) -> None:
        await self.response.write_eof()


def event(payload: object) -> bytes:
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"
