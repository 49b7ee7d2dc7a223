"""Frames that no peer of ours would send, in numbers: a million through the codec, thousands through each socket."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from itertools import cycle

import pytest
import zmq

from aphrodited import MQAphroditeEngineClient, SamplingParams
from aphrodited.errors import AphroditeError, ProtocolError
from aphrodited.interfaces import EngineStats
from aphrodited.mq import codec
from aphrodited.mq.client import MqClientConfig
from aphrodited.mq.codec import encode
from aphrodited.mq.messages import (
    PROTOCOL_VERSION,
    AbortRequest,
    Attach,
    Detach,
    Dropped,
    EngineDead,
    Hello,
    HelloReply,
    RequestFailed,
    StatsReply,
    StatsRequest,
    StepOutputs,
    Submit,
)
from aphrodited.outputs import FinishReason, RequestOutput, TokenLogprobs, TokenOutput
from aphrodited.procfs import process_start_ticks
from aphrodited.request import EncodeRequest, GenerateRequest
from tests.support.engine_process import engine_process
from tests.support.frame_fuzz import almost_messages
from tests.support.scripted_engine import FACTS, scripted_engine

NUM_FRAMES = 1_000_000
SLOWEST_FRAME_S = 1.0  # whatever a frame holds, and however busy the machine is
NUM_FRAMES_PER_SOCKET = 10_000

OUTPUT = TokenOutput(1 << 32 | 7, [1, 2], FinishReason.STOP, 2, [TokenLogprobs(1, -0.5, 1, [1], [-0.5])], 3, None)
TO_CLIENT = [
    encode(StepOutputs(0, [OUTPUT, TokenOutput(1, [1])])),
    encode(RequestFailed(0, 1, "code", "message", 400, "top_p")),
    encode(Dropped("too slow")),
]
LAST_WORDS = encode(EngineDead("cause"))
REPLIES = [
    encode(HelloReply(PROTOCOL_VERSION, True, "", 1, 2, 3, FACTS)),
    encode(StatsReply(1, EngineStats(num_running=3))),
]
DECODERS = [
    codec.decode_input,
    codec.decode_output,
    codec.decode_way,
    codec.decode_data_request,
    codec.decode_data_reply,
    codec.decode_heartbeat,
    codec.decode_event,
]


def from_client(name: str) -> dict[str, list[bytes]]:
    """What an attached client of that name may send, by socket."""
    params = SamplingParams(max_tokens=3, stop=("x",), stop_token_ids=(4, 5))
    return {
        "input": [
            encode(Submit(name, 1, GenerateRequest("r", [1, 2, 3], params))),
            encode(Submit(name, 2, EncodeRequest("r", [1, 2]))),
            encode(AbortRequest(name, 1)),
        ],
        "output": [encode(Attach(name, os.getpid(), process_start_ticks(os.getpid()) or 0)), encode(Detach(name))],
        "data": [encode(Hello(PROTOCOL_VERSION, name)), encode(StatsRequest(log=True))],
    }


@pytest.mark.timeout(240)
def test_a_million_frames_are_messages_or_refused_and_each_quickly() -> None:
    frames = [frame for group in from_client("client").values() for frame in group] + TO_CLIENT + REPLIES + [LAST_WORDS]
    num_messages, slowest_s = 0, 0.0
    decoders = cycle(DECODERS)
    for frame in almost_messages(frames, NUM_FRAMES, seed=1):
        decode = next(decoders)
        began_at_s = time.perf_counter()
        try:
            decode(frame)
        except ProtocolError:
            pass
        else:
            num_messages += 1
        slowest_s = max(slowest_s, time.perf_counter() - began_at_s)
    assert 0 < num_messages < NUM_FRAMES
    assert slowest_s < SLOWEST_FRAME_S


@pytest.mark.timeout(180)
async def test_an_engine_outlives_what_attached_clients_send() -> None:
    """Some of these frames are whole messages: requests with odd parameters, aborts, farewells of the client itself."""
    name = "fuzz"
    types = {"input": zmq.PUSH, "output": zmq.DEALER, "data": zmq.DEALER}
    with engine_process() as engine, ExitStack() as at_the_end:
        engine.start_and_wait()
        client = MQAphroditeEngineClient(engine.model_paths.folder)
        at_the_end.callback(client.context.term)  # one that is left to the garbage collector may hang there
        assert await client.wait_until_running(10)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context:
            for kind, frames in from_client(name).items():
                attach = context.socket(zmq.DEALER)
                attach.setsockopt(zmq.IDENTITY, name.encode())
                attach.setsockopt(zmq.LINGER, 0)
                attach.connect(engine.model_paths.endpoint(1, "output"))
                attach.send(from_client(name)["output"][0])
                await asyncio.to_thread(attach.poll, 5000)
                sender = attach if kind == "output" else context.socket(types[kind])
                sender.setsockopt(zmq.LINGER, 1000)
                if sender is not attach:
                    sender.connect(engine.model_paths.endpoint(1, kind))
                for number, frame in enumerate(almost_messages(frames, NUM_FRAMES_PER_SOCKET, seed=2)):
                    await asyncio.to_thread(sender.send, frame) if number % 100 == 0 else sender.send(frame)
                sender.close()
                attach.close()
                answers = [answer async for answer in client.generate([1, 2, 3], SamplingParams(max_tokens=5), "r")]
                assert answers[-1].outputs[0].token_ids == [1, 2, 3, 1, 2]
        assert "bad_frame" in engine.log
        assert not engine.has_ended


@pytest.mark.timeout(180)
async def test_a_client_outlives_what_an_engine_sends() -> None:
    """It may lose its connection to such an engine, time and again; its requests end, and it attaches anew."""
    with engine_process() as process, scripted_engine(process.model_paths) as engine:
        client = MQAphroditeEngineClient(process.model_paths.folder, MqClientConfig(start_timeout_s=10))
        outputs = almost_messages(TO_CLIENT, NUM_FRAMES_PER_SOCKET, seed=3)
        replies = almost_messages(REPLIES, NUM_FRAMES_PER_SOCKET, seed=4)
        endings: list[str] = []
        for _ in range(100):
            assert await client.wait_until_running(10)
            answers = client.generate([1, 2, 3], SamplingParams(max_tokens=1000), "r")
            request = asyncio.ensure_future(read_all(answers))
            submit = await engine.next_submit()
            for _ in range(NUM_FRAMES_PER_SOCKET // 100):
                engine.sockets.data.send_multipart([engine.asked[-1], next(replies)])
                engine.sockets.output.send_multipart([submit.client.encode(), next(outputs)])
            engine.send(StepOutputs(1000, []), submit.client)  # if all that was taken: a gap
            endings.append(await request)
        assert set(endings) <= {"finished", "OutputLostError", "EngineError", "RequestError"}
        assert "OutputLostError" in endings
        client.context.term()


async def read_all(answers: AsyncIterator[RequestOutput]) -> str:
    """How a request ended."""
    try:
        async for _ in answers:
            pass
    except AphroditeError as error:
        return type(error).__name__
    return "finished"
