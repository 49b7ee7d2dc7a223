"""Tests of aphrodited.mq.clients, over real sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from aphrodited.mq.clients import ClientTable
from aphrodited.mq.codec import decode_output
from aphrodited.mq.messages import (
    NUMBER_BITS,
    Attach,
    Attached,
    Dropped,
    EngineDead,
    HandingOver,
    OutputMessage,
    RequestFailed,
    StepOutputs,
)
from aphrodited.outputs import FinishReason, TokenLogprobs, TokenOutput
from aphrodited.paths import ModelPaths
from aphrodited.procfs import process_start_ticks
from tests.support.engine_process import wait_blocking
from tests.support.scripted_engine import token

HWM = 16


class Rig:
    """A table, and clients that read by hand."""

    def __init__(self, address: str) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.output = self.context.socket(zmq.ROUTER)
        self.output.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.output.setsockopt(zmq.LINGER, 0)
        self.output.setsockopt(zmq.SNDHWM, HWM)
        self.output.bind(address)
        self.address = address
        self.aborted: list[int] = []
        self.poller = zmq.Poller()
        self.table = ClientTable(self.output, self.poller, 3, self.aborted.append)
        self.sockets: list[zmq.Socket[bytes]] = []

    def connect(self, name: str) -> zmq.Socket[bytes]:
        """A client that is attached and has read so."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, name.encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, HWM)
        socket.connect(self.address)
        self.sockets.append(socket)
        socket.send(b"anything")
        identity, _ = self.output.recv_multipart()
        assert self.table.attach(identity, attach(name)) is None
        assert read(socket) == Attached(3, 0)
        return socket

    def close(self) -> None:
        self.table.close()
        for socket in (*self.sockets, self.output):
            socket.close()
        self.context.term()


@pytest.fixture
def rig(model_paths: ModelPaths) -> Iterator[Rig]:
    model_paths.folder.mkdir(parents=True)
    rig = Rig(f"ipc://{model_paths.folder}/output")
    yield rig
    rig.close()


def attach(name: str, pid: int | None = None) -> Attach:
    return Attach(name, pid or os.getpid(), process_start_ticks(os.getpid()) or 0)


def read(socket: zmq.Socket[bytes]) -> OutputMessage:
    assert socket.poll(5000)
    return decode_output(socket.recv())


def add(rig: Rig, name: str, *numbers: int) -> None:
    client = rig.table.find(name)
    assert client is not None
    client.numbers.update(numbers)


def test_each_client_gets_one_frame_with_its_own_outputs(rig: Rig) -> None:
    a, b = rig.connect("a"), rig.connect("b")
    add(rig, "a", 1, 2)
    add(rig, "b", 1)
    mine, yours, also_mine = token(1, 10, slot=1), token(1, 20, slot=2), token(2, 30, slot=1)
    rig.table.send_outputs([mine, yours, also_mine])
    assert read(a) == StepOutputs(0, [mine, also_mine])
    assert read(b) == StepOutputs(0, [yours])


def embedding(number: int, *, slot: int = 1) -> TokenOutput:
    return TokenOutput((slot << NUMBER_BITS) | number, [], FinishReason.STOP, embedding=bytes(1000))


def test_embeddings_too_large_for_one_frame_come_in_several(rig: Rig) -> None:
    rig.table = ClientTable(rig.output, rig.poller, 3, rig.aborted.append, max_frame_bytes=3000)
    a, b = rig.connect("a"), rig.connect("b")
    add(rig, "a", *range(1, 8))
    mine = [embedding(number) for number in range(1, 8)]
    yours = embedding(1, slot=2)
    rig.table.send_outputs([*mine[:4], yours, *mine[4:]])
    frames = [read(a), read(a), read(a)]
    assert frames == [StepOutputs(0, mine[:3]), StepOutputs(1, mine[3:6]), StepOutputs(2, mine[6:])]
    assert read(b) == StepOutputs(0, [yours])
    client = rig.table.find("a")
    assert client is not None
    assert not client.numbers


def test_a_prompts_logprobs_end_their_frame(rig: Rig) -> None:
    a = rig.connect("a")
    add(rig, "a", 1, 2, 3)
    scored = msgspec.structs.replace(token(2, 20), prompt_logprobs=[TokenLogprobs(5, -0.5, 1, [], [])])
    rig.table.send_outputs([token(1, 10), scored, token(3, 30)])
    assert [read(a), read(a)] == [StepOutputs(0, [token(1, 10), scored]), StepOutputs(1, [token(3, 30)])]


def test_frames_and_failures_share_one_numbering(rig: Rig) -> None:
    socket = rig.connect("a")
    client = rig.table.find("a")
    assert client is not None
    rig.table.send_outputs([token(1, 10)])
    rig.table.send_failure(client, 2, "code", "message", http_status=400)
    rig.table.send_outputs([token(1, 11, FinishReason.STOP)])
    assert [message.frame for message in (read(socket), read(socket), read(socket))] == [0, 1, 2]  # type: ignore[union-attr]


def test_attaching_again_is_answered_again(rig: Rig) -> None:
    socket = rig.connect("a")
    rig.table.send_outputs([token(1, 10)])
    assert rig.table.attach(b"a", attach("a")) is None
    assert read(socket) == StepOutputs(0, [token(1, 10)])
    assert read(socket) == Attached(3, 1)
    assert len(rig.table) == 1


@pytest.mark.parametrize(
    ("identity", "message", "reason"),
    [
        (b"b", attach("a"), "the name is taken"),
        (b"b", attach("c"), "the name is not the one of the socket"),
        (b"c", attach("c", pid=(1 << 22) - 1), "there is no process"),
        (b"c", Attach("c", os.getpid(), 0), "there is no process"),
    ],
)
def test_a_false_attach_is_refused(rig: Rig, identity: bytes, message: Attach, reason: str) -> None:
    rig.connect("a")
    refused = rig.table.attach(identity, message)
    assert refused is not None
    assert refused.startswith(reason)
    assert len(rig.table) == 1


def test_a_client_that_cannot_be_reached_is_forgotten_and_its_sequences_end(rig: Rig) -> None:
    socket = rig.connect("a")
    add(rig, "a", 7)
    socket.close()

    def try_once() -> bool:
        if rig.table.find("a") is not None:
            rig.table.send_outputs([token(7, 1)])
        return rig.table.find("a") is None

    wait_blocking(try_once)
    assert rig.aborted == [(1 << 32) | 7]


def test_a_client_that_does_not_read_is_dropped_then_told(rig: Rig) -> None:
    socket, other = rig.connect("a"), rig.connect("b")
    add(rig, "a", 1, 2)
    big = [token(1, i) for i in range(5000)]  # frames that fill the kernel's buffer too
    num_sent = 0
    while rig.table.find("a") is not None:
        rig.table.send_outputs(big)
        num_sent += 1
        assert num_sent < 10_000
    assert sorted(rig.aborted) == [(1 << 32) | 1, (1 << 32) | 2]
    assert rig.table.has_notices
    rig.table.retry_notices()
    assert rig.table.has_notices, "there is no room for the notice yet"
    rig.table.send_outputs([token(1, 1, slot=2)])
    assert read(other) == StepOutputs(0, [token(1, 1, slot=2)]), "nobody else is held up"
    seen: list[OutputMessage] = []

    def told() -> bool:
        while socket.poll(0):
            seen.append(decode_output(socket.recv()))
        rig.table.retry_notices()
        return bool(seen) and isinstance(seen[-1], Dropped)

    wait_blocking(told)
    assert [message.frame for message in seen[:-1]] == list(range(num_sent - 1))  # type: ignore[union-attr]
    assert not rig.table.has_notices
    assert len(rig.table) == 1


def test_the_death_is_told_to_everybody(rig: Rig) -> None:
    sockets = [rig.connect("a"), rig.connect("b")]
    rig.table.send_death("cause")
    assert [read(socket) for socket in sockets] == [EngineDead("cause")] * 2


def test_a_hand_over_is_told_to_everybody_and_to_whoever_comes_later(rig: Rig) -> None:
    early = rig.connect("early")
    rig.table.send_handing_over()
    late = rig.connect("late")
    assert [read(early), read(late)] == [HandingOver()] * 2
    rig.table.send_outputs([token(1, 5)])
    assert read(early) == StepOutputs(0, [token(1, 5)])  # it was no numbered frame


def test_all_requests_can_be_failed_at_once(rig: Rig) -> None:
    socket = rig.connect("a")
    add(rig, "a", 1, 2)
    assert rig.table.fail_all("SHUTTING_DOWN", "leaving", http_status=503) == 2
    failed = [read(socket), read(socket)]
    assert sorted(f.number for f in failed if isinstance(f, RequestFailed)) == [1, 2]
    assert sorted(rig.aborted) == [(1 << 32) | 1, (1 << 32) | 2]


def test_no_descriptor_is_left(rig: Rig) -> None:
    before = len(os.listdir("/proc/self/fd"))
    identity = b"never connected"
    for _ in range(3):
        # The answer cannot be delivered, so the client is forgotten at once.
        assert rig.table.attach(identity, attach(identity.decode())) is None
        assert len(rig.table) == 0
    assert len(os.listdir("/proc/self/fd")) == before
