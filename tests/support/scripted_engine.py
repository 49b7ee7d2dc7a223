"""An engine that answers as a test tells it: real sockets, real announcement, no engine behind them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from aphrodited.config.schema import MqConfig
from aphrodited.interfaces import ModelFacts
from aphrodited.mq.codec import decode_data_request, decode_input, decode_way, encode
from aphrodited.mq.endpoints import Generation, promote
from aphrodited.mq.messages import (
    NUMBER_BITS,
    PROTOCOL_VERSION,
    Attach,
    Attached,
    Detach,
    Hello,
    HelloReply,
    InputMessage,
    OutputMessage,
    StatsRequest,
    Submit,
)
from aphrodited.mq.sockets import EngineSockets
from aphrodited.outputs import FinishReason, TokenOutput
from aphrodited.paths import ModelPaths
from aphrodited.procfs import process_start_ticks

FACTS = ModelFacts(
    name="scripted",
    max_model_len=100,
    vocab_size=100,
    eos_token_ids=(),
    block_size=16,
    num_blocks=10,
    max_num_seqs=4,
    dtype="none",
    fingerprint="scripted",
    deterministic=True,
    backend="scripted",
)


def token(number: int, token_id: int, finish_reason: FinishReason | None = None, *, slot: int = 1) -> TokenOutput:
    return TokenOutput((slot << NUMBER_BITS) | number, [token_id], finish_reason)


class ScriptedEngine:
    """Attaches whoever asks; everything else a test does by hand."""

    def __init__(self, sockets: EngineSockets, generation: Generation) -> None:
        self.sockets = sockets
        self.generation = generation.number
        self._hand_over = generation.hand_over
        self.protocol_version = PROTOCOL_VERSION
        self.answers_hello = True
        self.received: list[InputMessage] = []
        self.num_stats_requests = 0
        self.asked: list[bytes] = []
        self.attached: list[str] = []
        self.detached: list[str] = []

    async def serve(self) -> None:
        while True:
            for socket, handle in (
                (self.sockets.data, self._on_data),
                (self.sockets.output, self._on_way),
                (self.sockets.input, self._on_input),
            ):
                while socket.poll(0):
                    handle(socket.recv_multipart())
            await asyncio.sleep(0.002)

    def send(self, message: OutputMessage, client: str | None = None) -> None:
        self.sockets.output.send_multipart([(client or self.attached[-1]).encode(), encode(message)])

    def hand_over(self) -> None:
        """Give up the right to serve without a word, and go on with what there is."""
        self._hand_over()

    async def next_submit(self) -> Submit:
        while True:
            for message in self.received:
                if isinstance(message, Submit):
                    self.received.remove(message)
                    return message
            await asyncio.sleep(0.002)

    def _on_input(self, frames: list[bytes]) -> None:
        self.received.append(decode_input(frames[0]))

    def _on_way(self, frames: list[bytes]) -> None:
        match decode_way(frames[1]):
            case Attach(client=client):
                self.attached.append(client)
                self.send(Attached(self.generation, 0))
            case Detach(client=client):
                self.detached.append(client)

    def _on_data(self, frames: list[bytes]) -> None:
        self.asked.append(frames[0])
        match decode_data_request(frames[1]):
            case Hello(protocol_version=version) if self.answers_hello:
                accepted = version == self.protocol_version
                reason = "" if accepted else "the versions differ"
                ticks = process_start_ticks(os.getpid()) or 0
                reply = HelloReply(
                    self.protocol_version, accepted, reason, self.generation, os.getpid(), ticks, FACTS
                )
                self.sockets.data.send_multipart([frames[0], encode(reply)])
            case StatsRequest():
                self.num_stats_requests += 1


@contextmanager
def scripted_engine(paths: ModelPaths, config: MqConfig | None = None) -> Iterator[ScriptedEngine]:
    """Announced and answering on the running loop, until the end of the block."""
    generation = promote(paths)
    sockets = EngineSockets(generation, config or MqConfig())
    for socket in (sockets.input, sockets.output, sockets.data):
        socket.setsockopt(zmq.LINGER, 0)
    for socket in (sockets.output, sockets.data):
        socket.setsockopt(zmq.ROUTER_MANDATORY, 0)  # a client may leave at any time, between two frames to it too
    engine = ScriptedEngine(sockets, generation)
    task = asyncio.get_running_loop().create_task(engine.serve())
    generation.announce()
    try:
        yield engine
    finally:
        task.cancel()
        sockets.close(linger_s=0.1)
        generation.close()
