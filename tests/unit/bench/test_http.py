"""Tests of aphrodited.bench.http and aphrodited.bench.http_client. The figures themselves are not judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from aphrodited.bench.http import latencies, percentiles
from aphrodited.bench.http_client import StreamTimes, stream_completion

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4}}\n\ndata: [DONE]\n\n'


@asynccontextmanager
async def server(*pieces: bytes) -> AsyncIterator[int]:
    """Answers one request with these pieces, each sent by itself."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield listening.sockets[0].getsockname()[1]


def cut_anywhere(text: bytes) -> list[Callable[[], tuple[bytes, bytes]]]:
    return [lambda at=at: (text[:at], text[at:]) for at in range(1, len(text), 7)]  # type: ignore[misc]


async def test_events_are_counted_wherever_the_stream_is_cut() -> None:
    text = HEAD + b'data: {"a":1}\n\ndata: {"b":2}\n\n: keep-alive\n\ndata: {"c":3}\n\n' + USAGE
    for cut in cut_anywhere(text):
        async with server(*cut()) as port:
            times = await stream_completion("127.0.0.1", port, {})
        assert len(times.event_times_s) == 3
        assert times.num_tokens == 3


async def test_a_refusal_ends_the_measurement_with_its_text() -> None:
    async with server(b'HTTP/1.1 429 Too Many Requests\r\n\r\n{"error":"full"}') as port:
        with pytest.raises(SystemExit, match="full"):
            await stream_completion("127.0.0.1", port, {})


async def test_a_stream_that_is_cut_off_ends_the_measurement() -> None:
    async with server(HEAD, b'data: {"a":1}\n\n') as port:
        with pytest.raises(SystemExit, match="ended early"):
            await stream_completion("127.0.0.1", port, {})


def test_percentiles_are_values_that_occurred() -> None:
    assert percentiles([number / 1000 for number in range(1, 101)]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert percentiles([0.007]) == {"p50": 7.0, "p90": 7.0, "p99": 7.0}
    assert percentiles([]) == {}


def test_latencies_are_to_the_first_event_and_from_each_to_the_next() -> None:
    streams = [StreamTimes([0.1, 0.2, 0.2], 3), StreamTimes([0.1], 1), StreamTimes([], 0)]
    assert latencies(streams)["time_to_first_token_ms"]["p99"] == 100.0
    assert latencies(streams)["inter_token_ms"] == {"p50": 0.0, "p90": 100.0, "p99": 100.0}
