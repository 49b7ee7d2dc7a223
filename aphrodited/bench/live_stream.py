"""A streamed completion that can be watched while it flows: one connection, an instant for each event with a token.

Knows the answers of this project's own server, and costs little, so that many can be watched on the machine that serves.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import msgspec

EVENT = b"data: {"


class LiveStream(asyncio.Protocol):
    """times_s: monotonic, one for each event with a token.  done: the error in words, or empty, at the stream's end."""

    def __init__(self, request: bytes) -> None:
        self.times_s: list[float] = []
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._request = request
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if b'data: {"error"' in event:
                self._finish(event.decode(errors="replace"))
            elif b'"finish_reason":null' in event:
                self.times_s.append(now_s)
            elif event.endswith(b"data: [DONE]"):
                self._finish("")

    def connection_lost(self, error: Exception | None) -> None:
        self._finish(f"the connection ended early: {error or self._rest.decode(errors='replace')}")

    def close(self) -> None:
        """Leave, whatever still comes."""
        self._finish("")

    async def wait_for(self, num_events: int) -> None:
        """Return when so many have come. Raises SystemExit if the stream ends before."""
        while len(self.times_s) < num_events:
            if self.done.done():
                raise SystemExit(f"a stream ended after {len(self.times_s)} tokens: {self.done.result()}")
            await asyncio.sleep(0.002)

    async def wait(self) -> None:
        """Return at its end. Raises SystemExit if that was no good one."""
        error = await self.done
        if error:
            raise SystemExit(f"a stream failed: {error}")

    def _finish(self, error: str) -> None:
        if not self.done.done():
            self.done.set_result(error)
        if self._transport is not None:
            self._transport.abort()


async def open_stream(host: str, port: int, body: dict[str, Any]) -> LiveStream:
    """Ask /v1/completions."""
    payload = msgspec.json.encode({**body, "stream": True})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: LiveStream(head.encode() + payload), host, port)
    return stream
