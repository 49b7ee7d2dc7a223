"""A client of streamed completions that costs little itself: one connection a request, events counted as they come.

Not a client for anything else: it knows the answers of this project's own server.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

EVENT = b'"finish_reason":null'
"""In every event that brings something of the answer; not in the one that ends it, nor in the one with the usage."""

USAGE = re.compile(rb'"completion_tokens":(\d+)')
KEPT = 512
"""Bytes kept of what came last: more than the event with the usage has."""


@dataclass(slots=True)
class StreamTimes:
    """One answer. event_times_s: when each event with text came, in seconds since it was asked for, connecting included."""

    event_times_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    elapsed_s: float = 0.0


class _Stream(asyncio.Protocol):
    def __init__(self, request: bytes, began_at_s: float) -> None:
        self.times = StreamTimes()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._began_at_s = began_at_s
        self._tail = b""
        self._head: bytes | None = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter() - self._began_at_s
        if self._head is not None:
            self._head = (self._head + data)[: len(b"HTTP/1.1 200")]
            if len(self._head) == len(b"HTTP/1.1 200"):
                if self._head != b"HTTP/1.1 200":
                    self.done.set_exception(SystemExit(f"the server answered {data.decode(errors='replace')}"))
                self._head = None
        overlap = self._tail[1 - len(EVENT) :]
        num_events = (overlap + data).count(EVENT)
        self.times.event_times_s += [now_s] * num_events
        self._tail = (self._tail + data)[-KEPT:]

    def connection_lost(self, error: Exception | None) -> None:
        if self.done.done():
            return
        self.times.elapsed_s = time.perf_counter() - self._began_at_s
        usage = USAGE.search(self._tail)
        if usage is None:
            self.done.set_exception(SystemExit(f"a stream ended early: {self._tail.decode(errors='replace')}"))
            return
        self.times.num_tokens = int(usage[1])
        self.done.set_result(None)


async def stream_completion(host: str, port: int, body: dict[str, Any]) -> StreamTimes:
    """Ask /v1/completions and read the stream to its end. Raises SystemExit if it is not answered in full."""
    payload = msgspec.json.encode({**body, "stream": True, "stream_options": {"include_usage": True}})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    loop, began_at_s = asyncio.get_running_loop(), time.perf_counter()
    transport, stream = await loop.create_connection(lambda: _Stream(head.encode() + payload, began_at_s), host, port)
    try:
        await stream.done
    finally:
        transport.close()
    return stream.times
