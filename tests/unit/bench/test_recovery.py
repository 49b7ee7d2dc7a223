"""Streams that are watched while they flow, and the order in which they go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from aphrodited.bench.live_stream import LiveStream, open_stream
from aphrodited.bench.recovery import num_out_of_turn

TOKEN = b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
ERROR = b'data: {"error":{"message":"gone"}}\n\ndata: [DONE]\n\n'


@asynccontextmanager
async def stream_of(*parts: bytes) -> AsyncIterator[LiveStream]:
    """Of a server that answers with these parts, one write each, and hangs up."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for part in (b"HTTP/1.1 200 OK\r\n\r\n", *parts):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()  # the stream was left before
        finally:
            is_over.set()

    is_over = asyncio.Event()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        stream = await open_stream(host, port, {"prompt": "x"})
        yield stream
        stream.close()
        await is_over.wait()
        await asyncio.sleep(0)  # the stream's socket is closed by the loop's next turn


async def test_each_event_with_a_token_is_an_instant_however_it_was_cut() -> None:
    async with stream_of(TOKEN[:10], TOKEN[10:] + TOKEN, END) as stream:
        await stream.wait_for(2)
        await stream.wait()
        assert len(stream.times_s) == 2
        assert stream.times_s == sorted(stream.times_s)


@pytest.mark.parametrize("parts", [(TOKEN, ERROR), (TOKEN,)])
async def test_a_stream_that_does_not_end_well_is_said(parts: tuple[bytes, ...]) -> None:
    async with stream_of(*parts) as stream:
        with pytest.raises(SystemExit, match="a stream failed: "):
            await stream.wait()
        with pytest.raises(SystemExit, match="ended after 1 tokens"):
            await stream.wait_for(2)


async def test_leaving_is_no_failure() -> None:
    async with stream_of(TOKEN) as stream:
        stream.close()
        await stream.wait()


def test_whoever_goes_on_before_a_shorter_one_is_out_of_turn() -> None:
    assert num_out_of_turn([0.1, 0.1, 0.2, 0.3]) == 0
    assert num_out_of_turn([0.5, 0.2, 0.6, 0.7]) == 1
    assert num_out_of_turn([0.9, 0.2, 0.3, 0.7]) == 3
    assert num_out_of_turn([0.203, 0.2]) == 0
