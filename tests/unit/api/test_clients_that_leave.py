"""A client that goes away, or stops reading, costs nothing more: its sequences are aborted at once."""

import asyncio
import json
import socket

import msgspec
import pytest

from aphrodited.api.context import CONTEXT
from tests.support.waiting import wait_until

PATHS = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]}, "/v1/completions": {"prompt": "a"}}


def post(path, body):
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 3])
async def test_leaving_aborts_every_choice(client, stage, path, stream, num_tokens):
    stage.engine.gate.clear()
    stage.engine.gate_after = num_tokens  # 0: still queued or prefilling; 3: decoding
    _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(post(path, {**PATHS[path], "stream": stream, "n": 2}))
    await asyncio.wait_for(stage.engine.started.wait(), 5)
    await wait_until(lambda: stage.engine.num_open == 2)
    writer.close()
    await wait_until(lambda: stage.engine.num_open == 0)
    assert len(stage.engine.aborted) == 2
    await wait_until(lambda: stage.app[CONTEXT].traffic.num_running == 0)
    assert stage.app[CONTEXT].admission.num_running == 0


async def test_leaving_ends_every_embedding(client, stage):
    stage.engine.gate.clear()
    _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(post("/v1/embeddings", {"input": ["a", "b", "c"]}))
    await wait_until(lambda: stage.engine.num_open == 3)
    writer.close()
    await wait_until(lambda: stage.engine.num_open == 0)
    assert len(stage.engine.aborted) == 3
    await wait_until(lambda: stage.app[CONTEXT].traffic.num_running == 0)
    assert stage.app[CONTEXT].admission.num_running == 0


async def test_a_reset_connection_aborts_too(client, stage):
    stage.engine.gate.clear()
    peer = socket.create_connection(("127.0.0.1", stage.port))
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    peer.sendall(post("/v1/completions", {"prompt": "a", "stream": True}))
    await asyncio.wait_for(stage.engine.started.wait(), 5)
    peer.close()
    await wait_until(lambda: stage.engine.aborted)


async def test_leaving_while_held_leaves_the_queue(client, stage):
    stage.engine.is_running = False
    admission = stage.app[CONTEXT].admission
    _, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(post("/v1/completions", {"prompt": "a"}))
    await wait_until(lambda: admission.num_held == 1)
    writer.close()
    await wait_until(lambda: admission.num_held == 0)
    assert admission.held_bytes == 0
    assert not stage.engine.calls


async def test_a_client_that_stops_reading_is_cut_off_and_aborted(client, stage):
    stage.engine.answer = "x" * 100_000
    stage.engine.facts = msgspec.structs.replace(stage.engine.facts, max_model_len=200_000)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect(("127.0.0.1", stage.port))
    peer.sendall(post("/v1/completions", {"prompt": "a", "stream": True, "max_tokens": 100_000}))
    await wait_until(lambda: stage.engine.aborted, timeout_s=20)
    await wait_until(lambda: stage.app[CONTEXT].traffic.num_running == 0)
    peer.close()


async def test_a_finished_answer_aborts_nothing(client, stage):
    response = await client.post("/v1/completions", json={"prompt": "a", "n": 2})
    assert response.status == 200
    assert stage.engine.aborted == []
