"""Tests of aphrodited.mq.pump."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import zmq

from aphrodited.mq.pump import FRAMES_PER_CALL, SocketPump
from tests.support.engine_process import wait_until


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PAIR) as near, context.socket(zmq.PAIR) as far:
        near.bind("inproc://pump")
        far.connect("inproc://pump")
        yield near, far


async def test_every_frame_is_handled_in_order(pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]) -> None:
    near, far = pair
    seen: list[bytes] = []
    pump = SocketPump(near, seen.append)
    expected = [str(i).encode() for i in range(10 * FRAMES_PER_CALL)]
    for frame in expected:
        far.send(frame)
    await wait_until(lambda: seen == expected)
    far.send(b"later")
    await wait_until(lambda: seen[-1] == b"later")
    pump.close()


async def test_others_run_between_batches(pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]) -> None:
    near, far = pair
    for _ in range(10 * FRAMES_PER_CALL):
        far.send(b"x")
    seen: list[bytes] = []
    pump = SocketPump(near, seen.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(seen) < 10 * FRAMES_PER_CALL
    pump.close()


async def test_drain_takes_everything_at_once(pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]) -> None:
    near, far = pair
    for _ in range(100):
        far.send(b"x")
    seen: list[bytes] = []
    pump = SocketPump(near, seen.append)
    pump.drain()
    assert len(seen) == 100
    pump.close()


async def test_a_handler_may_close_the_pump(pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]) -> None:
    near, far = pair
    for _ in range(5):
        far.send(b"x")
    seen: list[bytes] = []

    def handle(frame: bytes) -> None:
        seen.append(frame)
        pump.close()

    pump = SocketPump(near, handle)
    await asyncio.sleep(0.01)
    assert len(seen) == 1
    pump.close()


async def test_a_handler_that_raises_does_not_stop_the_rest(pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]) -> None:
    near, far = pair
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    seen: list[bytes] = []

    def handle(frame: bytes) -> None:
        seen.append(frame)
        if len(seen) == 2:
            raise RuntimeError("a bug")

    pump = SocketPump(near, handle)
    for _ in range(5):
        far.send(b"x")
    await wait_until(lambda: len(seen) == 5)
    assert [str(error) for error in errors] == ["a bug"]
    pump.close()
