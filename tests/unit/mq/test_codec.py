"""Tests of aphrodited.mq.codec."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aphrodited.errors import ProtocolError
from aphrodited.interfaces import EngineStats
from aphrodited.mq import codec
from aphrodited.mq import messages as m
from aphrodited.outputs import FinishReason, TokenLogprobs, TokenOutput
from aphrodited.request import EncodeRequest, GenerateRequest
from aphrodited.sampling_params import SamplingParams
from tests.support.scripted_engine import FACTS

OUTPUT = TokenOutput(1 << 32 | 7, [1, 2], FinishReason.STOP, 2, [TokenLogprobs(1, -0.5, 1, [1], [-0.5])], 3, None)

EXAMPLES: list[tuple[Callable[[bytes], Any], Any]] = [
    (codec.decode_input, m.Submit("c", 1, GenerateRequest("r", [1, 2], SamplingParams(stop=("x",))))),
    (codec.decode_input, m.Submit("c", 1, EncodeRequest("r", [1, 2], "mean", False, 3))),
    (codec.decode_input, m.AbortRequest("c", 1)),
    (codec.decode_way, m.Attach("c", 1, 2)),
    (codec.decode_way, m.Detach("c")),
    (codec.decode_output, m.Attached(3, 0)),
    (codec.decode_output, m.StepOutputs(5, [OUTPUT])),
    (codec.decode_output, m.StepOutputs(5, [TokenOutput(7, [], FinishReason.STOP, embedding=b"\x00\xff")])),
    (codec.decode_output, m.RequestFailed(6, 1, "code", "message", 400, "top_p")),
    (codec.decode_output, m.Dropped("too slow")),
    (codec.decode_output, m.EngineDead("cause")),
    (codec.decode_heartbeat, m.Heartbeat(1, EngineStats(num_running=2))),
    (codec.decode_data_request, m.Hello(1, "c")),
    (codec.decode_data_request, m.StatsRequest(log=True)),
    (codec.decode_data_reply, m.HelloReply(1, True, "", 1, 2, 3, FACTS)),
    (codec.decode_data_reply, m.StatsReply(1, EngineStats())),
    (codec.decode_event, m.EngineEvent(m.EventKind.ENGINE_DEAD, "m", 1, 2, "cause")),
]
DECODERS = list({id(decode): decode for decode, _ in EXAMPLES}.values())


@pytest.mark.parametrize(("decode", "message"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_a_message_comes_back_as_it_was(decode: Callable[[bytes], Any], message: Any) -> None:
    assert decode(codec.encode(message)) == message


@pytest.mark.parametrize(("decode", "message"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_no_other_socket_takes_it(decode: Callable[[bytes], Any], message: Any) -> None:
    for other in DECODERS:
        if other is not decode:
            with pytest.raises(ProtocolError, match="not a message of the"):
                other(codec.encode(message))


@given(st.binary(max_size=200))
def test_garbage_is_refused(frame: bytes) -> None:
    for decode in DECODERS:
        with pytest.raises(ProtocolError):
            decode(frame)


@given(st.sampled_from(EXAMPLES), st.data())
def test_a_damaged_frame_is_refused_or_still_a_message(example: tuple[Callable[[bytes], Any], Any], data: st.DataObject) -> None:
    decode, message = example
    frame = bytearray(codec.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        decode(bytes(frame))


def test_endless_nesting_is_refused() -> None:
    frame = b"\x94" + codec.encode("abort") + codec.encode("c") + codec.encode(1) + b"\x91" * 100_000
    with pytest.raises(ProtocolError):
        codec.decode_input(frame)


def test_a_length_that_no_frame_holds_allocates_nothing() -> None:
    frame = codec.encode(m.Submit("c", 1, GenerateRequest("r", [1, 2, 3], SamplingParams())))
    bomb = frame.replace(b"\x93\x01\x02\x03", b"\xdd\xff\xff\xff\xff\x01\x02\x03")
    with pytest.raises(ProtocolError):
        codec.decode_input(bomb)


def test_a_newer_peer_may_say_more() -> None:
    frame = b"\x94" + codec.encode("hello") + codec.encode(2) + codec.encode("c") + codec.encode("something new")
    assert codec.decode_data_request(frame) == m.Hello(2, "c")
