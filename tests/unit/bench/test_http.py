"""Tests of aphrodited.bench.http and aphrodited.bench.http_client. The figures themselves are not judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from aphrodited.bench.http import costs, latencies, lines, medians, percentiles
from aphrodited.bench.http_client import StreamTimes, stream_completion

EVENTS = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n: keep-alive\n\n' * 3
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
USAGE = b'data: {"choices":[{"finish_reason":"length"}]}\n\ndata: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4}}\n\ndata: [DONE]\n\n'


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
    text = HEAD + EVENTS + USAGE
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
    async with server(HEAD, EVENTS) as port:
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


def test_the_cost_of_a_token_is_told_for_each_hop() -> None:
    cpu_s = {"engine-a": 0.3, "api-0": 0.1, "api-1": 0.2, "monitor": 9.0, "client": 0.05}
    figures = costs(2.0, [StreamTimes([0.1, 0.2], 3), StreamTimes([0.1], 1)], cpu_s)
    assert figures["cpu_us_per_token"] == {"engine": 75000.0, "api": 75000.0, "client": 12500.0}
    assert figures["events_per_worker_core_second"] == 10
    assert figures["tokens_per_event"] == pytest.approx(4 / 3, abs=0.001)
    assert figures["client_share_of_core"] == 0.025


def test_the_median_of_each_figure_is_taken_at_any_depth() -> None:
    rounds = [{"a": 1, "b": {"c": value, "d": None}} for value in (5, 1, 3)]
    assert medians(rounds) == {"a": 1, "b": {"c": 3, "d": None}}


@pytest.mark.parametrize("share", [0.1, 0.95])
def test_a_client_that_was_the_bottleneck_is_told(share: float) -> None:
    latency = {"time_to_first_token_ms": {}, "inter_token_ms": {}}
    figures = {"ratios": {"http/sync": 0.9}, **costs(1.0, [StreamTimes([0.1], 1)], {"client": share}), **latency}
    assert any("bottleneck" in line for line in lines(figures)) == (share > 0.9)
