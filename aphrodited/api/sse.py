"""Server-sent events on one response: when headers go out, keep-alives, and how long a slow reader is waited for.

Framing as in https://html.spec.whatwg.org/multipage/server-sent-events.html. Knows nothing of what the events say.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from aphrodited.api.error_responses import ErrorAnswer

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
STALL_TIMEOUT_S = 30.0
WRITE_BUFFER_SIZE = 256 * 1024
RESUME_SIZE = WRITE_BUFFER_SIZE // 4
"""So many bytes behind, a client is certainly not waited for: a stream that had to wait goes on below this."""


class ClientStalledError(ConnectionError):
    """The client took no data for so long that it counts as gone."""


class EventStream:
    """The event stream that answers `request`. Headers are sent with the first bytes, so that until then a plain
    error can be answered instead.
    """

    def __init__(self, request: web.Request, stall_timeout_s: float = STALL_TIMEOUT_S) -> None:
        self._request = request
        self._stall_timeout_s = stall_timeout_s
        self._is_chunked = False  # not before the headers are out, and never with HTTP/1.0
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

    @property
    def has_room(self) -> bool:
        """The client is not so far behind that it would have to be waited for, and `send_now` may be used."""
        transport = self._request.transport
        return self._is_chunked and transport is not None and transport.get_write_buffer_size() <= RESUME_SIZE

    def send_now(self, events: bytes) -> None:
        """Write whole events past the HTTP library, which takes longer for it than the kernel; there must be room.

        To a client that left, this writes nothing and says nothing: its handler is cancelled.
        """
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            transport.write(b"%x\r\n%b\r\n" % (len(events), events))

    async def send(self, events: bytes) -> None:
        """Write whole events, waiting while the client's buffers are full.

        Raises ConnectionError if the client left, or took nothing for the stall timeout.
        """
        if not self.response.prepared:
            await self._start()
        transport = self._request.transport
        if transport is None or transport.get_write_buffer_size() + len(events) <= RESUME_SIZE:
            await self.response.write(events)  # does not wait, so it needs no timer: a timer costs as much as the rest
        else:
            await self._send_slowly(transport, events)

    async def _send_slowly(self, transport: asyncio.Transport, events: bytes) -> None:
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                await self.response.write(events)
        except TimeoutError as error:
            transport.abort()
            raise ClientStalledError(f"the client read nothing for {self._stall_timeout_s:g} s") from error

    async def _start(self) -> None:
        transport = self._request.transport
        if transport is not None:
            transport.set_write_buffer_limits(high=WRITE_BUFFER_SIZE, low=RESUME_SIZE)
        await self.response.prepare(self._request)
        self._is_chunked = self.response.headers.get("Transfer-Encoding") == "chunked"

    async def fail(self, answer: ErrorAnswer) -> None:
        """End a stream that has started with an error event."""
        await self.send(b"data: " + answer.body() + b"\n\n" + DONE)
        await self.end()

    async def end(self) -> None:
        await self.response.write_eof()
