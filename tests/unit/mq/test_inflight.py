"""Tests of aphrodited.mq.inflight: whatever frames come in whatever order, each request ends once."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aphrodited.errors import (
    ContextLengthError,
    EngineError,
    EngineStoppingError,
    MQEngineDeadError,
    OutputLostError,
    QueueFullError,
    RequestError,
)
from aphrodited.mq.inflight import InFlight, copy_of
from aphrodited.mq.messages import RequestFailed, StepOutputs
from aphrodited.outputs import FinishReason
from aphrodited.streams import TokenStream
from tests.support.scripted_engine import token


def in_flight(max_unread: int = 10) -> InFlight:
    requests = InFlight(max_unread)
    requests.next_frame = 0
    return requests


async def test_each_output_reaches_its_request() -> None:
    requests = in_flight()
    first, second = requests.open(1, "a"), requests.open(2, "b")
    assert requests.take_outputs(StepOutputs(0, [token(1, 10), token(2, 20), token(3, 30)])) == []
    assert (await first.get()).token_ids == [10]
    assert (await second.get()).token_ids == [20]


def test_a_finished_request_is_forgotten() -> None:
    requests = in_flight()
    stream = requests.open(1, "a")
    requests.take_outputs(StepOutputs(0, [token(1, 10, FinishReason.STOP)]))
    assert len(requests) == 0
    assert not requests.release(stream)


def test_a_gap_is_seen() -> None:
    requests = in_flight()
    requests.take_outputs(StepOutputs(0, []))
    with pytest.raises(OutputLostError, match="frame 1 was due and 3 came"):
        requests.take_outputs(StepOutputs(3, []))


def test_a_consumer_that_does_not_read_is_named() -> None:
    requests = in_flight()
    requests.open(1, "a")
    for frame in range(10):
        assert requests.take_outputs(StepOutputs(frame, [token(1, frame)])) == []
    assert requests.take_outputs(StepOutputs(10, [token(1, 10)])) == [1]
    assert len(requests) == 0


def test_abort_ends_every_request_of_the_label() -> None:
    requests = in_flight()
    streams = [requests.open(number, label) for number, label in ((1, "a"), (2, "b"), (3, "a"))]
    assert requests.abort("a") == [1, 3]
    assert [stream.ended for stream in streams] == [True, False, True]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (RequestFailed(0, 1, "QUEUE_FULL", "full", 429), QueueFullError),
        (RequestFailed(0, 1, "context_length_exceeded", "too long", 400, "prompt"), ContextLengthError),
        (RequestFailed(0, 1, "SHUTTING_DOWN", "leaving", 503), EngineStoppingError),
        (RequestFailed(0, 1, "LOST", "gone", 503), EngineError),
    ],
)
async def test_a_failure_is_the_error_it_was(failure: RequestFailed, kind: type[Exception]) -> None:
    requests = in_flight()
    stream = requests.open(1, "a")
    requests.take_failure(failure)
    with pytest.raises(kind) as raised:
        await stream.get()
    assert (raised.value.code, raised.value.http_status) == (failure.code, failure.http_status)  # type: ignore[attr-defined]


def test_a_copied_error_is_equal_and_not_the_same() -> None:
    error = MQEngineDeadError("dead", cause="why")
    twin = copy_of(error)
    assert twin is not error
    assert (type(twin), str(twin), twin.cause) == (MQEngineDeadError, "dead", "why")  # type: ignore[attr-defined]


EVENTS = st.sampled_from(["token", "finish", "error", "failed", "abort", "release", "die"])


@given(st.lists(st.tuples(EVENTS, st.integers(1, 4)), max_size=40))
def test_every_request_has_one_terminal_event(events: list[tuple[str, int]]) -> None:
    asyncio.run(_replay(events))


async def _replay(events: list[tuple[str, int]]) -> None:
    requests = in_flight(max_unread=50)
    streams = {number: requests.open(number, f"r{number}") for number in range(1, 5)}
    released: set[int] = set()
    frame = 0
    for kind, number in [*events, ("die", 0)]:
        if kind in ("token", "finish", "error"):
            reason = {"token": None, "finish": FinishReason.LENGTH, "error": FinishReason.ERROR}[kind]
            requests.take_outputs(StepOutputs(frame, [token(number, 1, reason)]))
            frame += 1
        elif kind == "failed":
            requests.take_failure(RequestFailed(frame, number, "code", "message"))
            frame += 1
        elif kind == "abort":
            requests.abort(f"r{number}")
        elif kind == "release":
            requests.release(streams[number])
            released.add(number)
        else:
            requests.fail_all(MQEngineDeadError("dead"))
    assert len(requests) == 0
    for number, stream in streams.items():
        assert stream.ended
        if number not in released:
            assert await _count_terminals(stream) == 1


async def _count_terminals(stream: TokenStream) -> int:
    """Reads until the first terminal event, then whether another one follows."""
    num_finished = 0
    try:
        while num_finished == 0:
            num_finished += (await stream.get()).finish_reason is not None
    except (RequestError, EngineError):
        return num_finished + 1
    return num_finished
