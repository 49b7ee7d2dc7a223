"""An event stream on a real connection: whole events, and no endless wait for a client that does not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from aphrodited.api.server import serving
from aphrodited.api.sse import DONE, RESUME_SIZE, WRITE_BUFFER_SIZE, ClientStalledError, EventStream

Play = Callable[[EventStream], Awaitable[None]]
Ask = Callable[..., Awaitable[socket.socket]]
EVENT = b"data: 1\n\n"


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Call it with what a handler is to do with its stream, for a connection that has asked."""
    plays: list[Play] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        stream = EventStream(request, stall_timeout_s=0.2)
        await plays.pop()(stream)
        return stream.response

    app = web.Application()
    app.router.add_get("/", handler)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with serving(app, listening, farewell_s=1):
            peers = []

            async def ask(play: Play, version: str = "1.1") -> socket.socket:
                plays.append(play)
                peers.append(peer := socket.socket())
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                peer.connect(listening.getsockname())
                peer.sendall(f"GET / HTTP/{version}\r\nHost: t\r\nConnection: close\r\n\r\n".encode())
                return peer

            yield ask
            for peer in peers:
                peer.close()


def stalled_by(events: list[bytes]) -> tuple[Play, asyncio.Future[BaseException | None]]:
    """Sends these events, and tells how that ended."""
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async def play(stream: EventStream) -> None:
        try:
            for event in events:
                await stream.send(event)
            ended.set_result(None)
        except ConnectionError as error:
            ended.set_result(error)
            raise

    return play, ended


@pytest.mark.parametrize(
    "events",
    [[b"x" * (16 * 1024**2)], [b"x" * (RESUME_SIZE // 2)] * 512, [b"x" * 100] * 100_000],
    ids=["one that no buffer holds", "large ones", "small ones"],
)
async def test_a_client_that_reads_nothing_is_cut_off(
    ask: Ask, events: list[bytes]
) -> None:
    play, ended = stalled_by(events)
    await ask(play)
    assert isinstance(await asyncio.wait_for(ended, 20), ClientStalledError)


async def test_a_client_that_reads_slowly_gets_everything(ask: Ask) -> None:
    num_events = 4 * WRITE_BUFFER_SIZE // len(EVENT)
    play, ended = stalled_by([EVENT] * num_events)

    async def whole(stream: EventStream) -> None:
        assert not stream.has_started
        await play(stream)
        assert stream.has_started
        await stream.send(DONE)
        await stream.end()

    text = await everything_from(await ask(whole))
    assert await ended is None
    assert text.count(EVENT) == num_events
    assert text.count(DONE) == 1


async def test_events_sent_at_once_come_between_the_others_in_whole_chunks(ask: Ask) -> None:
    async def play(stream: EventStream) -> None:
        assert not stream.has_room  # its headers are not out
        await stream.send(b"data: 1\n\n")
        assert stream.has_room
        stream.send_now(b"data: 2\n\n")
        stream.send_now(b"data: three\n\n" * 2)
        await stream.send(b"data: 4\n\n")
        await stream.end()

    body = (await everything_from(await ask(play))).partition(b"\r\n\r\n")[2]
    chunks = [b"data: 1\n\n", b"data: 2\n\n", b"data: three\n\n" * 2, b"data: 4\n\n", b""]
    assert body == b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


async def test_a_client_far_behind_gets_nothing_at_once(ask: Ask) -> None:
    ended = asyncio.get_running_loop().create_future()

    async def play(stream: EventStream) -> None:
        await stream.send(EVENT)
        num_sent = 0
        while stream.has_room and num_sent < 100_000:
            stream.send_now(b"x" * 1000)
            num_sent += 1
        ended.set_result(num_sent)

    await ask(play)
    assert await asyncio.wait_for(ended, 20) < 100_000


async def test_http_1_0_knows_no_chunks_and_gets_plain_events(ask: Ask) -> None:
    async def play(stream: EventStream) -> None:
        await stream.send(EVENT)
        assert not stream.has_room
        await stream.send(DONE)
        await stream.end()

    text = await everything_from(await ask(play, "1.0"))
    assert text.partition(b"\r\n\r\n")[2] == EVENT + DONE


async def test_what_is_sent_at_once_to_a_client_that_left_does_no_harm(ask: Ask) -> None:
    ended = asyncio.get_running_loop().create_future()

    async def play(stream: EventStream) -> None:
        await stream.send(EVENT)
        try:
            while True:
                await asyncio.sleep(0.001)
                stream.send_now(EVENT)
        except asyncio.CancelledError:
            stream.send_now(EVENT)
            ended.set_result(stream.has_room)
            raise

    peer = await ask(play)
    peer.setblocking(False)
    await asyncio.get_running_loop().sock_recv(peer, 100)
    peer.close()
    assert not await asyncio.wait_for(ended, 20)


async def everything_from(peer: socket.socket) -> bytes:
    peer.setblocking(False)
    loop, text = asyncio.get_running_loop(), b""
    while received := await loop.sock_recv(peer, 8192):
        text += received
    return text
