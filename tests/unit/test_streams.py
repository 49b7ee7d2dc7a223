"""Tests of aphrodited.streams."""

from __future__ import annotations

import asyncio

import pytest

from aphrodited.errors import MQEngineDeadError, RequestError
from aphrodited.outputs import FinishReason, TokenLogprobs, TokenOutput
from aphrodited.streams import TokenStream


def token(token_id: int, finish_reason: FinishReason | None = None, error: tuple[str, str] | None = None) -> TokenOutput:
    return TokenOutput(1, [token_id], finish_reason, error=error)


@pytest.fixture
def stream() -> TokenStream:
    return TokenStream(1, "r", max_unread=4)


async def test_outputs_come_in_order_and_together(stream: TokenStream) -> None:
    stream.put(token(1))
    stream.put(token(2))
    assert (await stream.get()).token_ids == [1, 2]


async def test_what_came_together_ends_as_the_last_of_it_does(stream: TokenStream) -> None:
    def logprobs(token_id: int) -> list[TokenLogprobs]:
        return [TokenLogprobs(token_id, -0.5, 1, [], [])]

    stream.put(TokenOutput(1, [5], logprobs=logprobs(5), num_cached_tokens=16))
    stream.put(TokenOutput(1, [6], FinishReason.STOP, 6, logprobs(6)))
    assert await stream.get() == TokenOutput(1, [5, 6], FinishReason.STOP, 6, logprobs(5) + logprobs(6), 16)


async def test_what_came_before_an_abort_keeps_its_logprobs(stream: TokenStream) -> None:
    logprobs = [TokenLogprobs(5, -0.5, 1, [], [])]
    stream.put(TokenOutput(1, [5], logprobs=logprobs))
    stream.put(TokenOutput(1, [], FinishReason.ABORT))
    assert await stream.get() == TokenOutput(1, [5], FinishReason.ABORT, logprobs=logprobs)


async def test_a_waiting_consumer_is_woken(stream: TokenStream) -> None:
    waiting = asyncio.create_task(stream.get())
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.put(token(1))
    assert (await waiting).token_ids == [1]


async def test_what_came_before_an_error_is_delivered_first(stream: TokenStream) -> None:
    stream.put(token(1))
    stream.fail(MQEngineDeadError("dead"))
    assert (await stream.get()).token_ids == [1]
    with pytest.raises(MQEngineDeadError):
        await stream.get()


async def test_a_stream_ends_once(stream: TokenStream) -> None:
    stream.put(token(1, FinishReason.STOP))
    assert stream.ended
    stream.fail(MQEngineDeadError("late"))
    stream.put(token(2))
    assert (await stream.get()).token_ids == [1]
    assert stream.ended


async def test_a_request_that_failed_alone_raises(stream: TokenStream) -> None:
    stream.put(token(1, FinishReason.ERROR, ("not_finite", "the logits are not finite")))
    with pytest.raises(RequestError, match="not finite") as failed:
        await stream.get()
    assert failed.value.code == "not_finite"


async def test_a_failure_names_the_field_it_concerns(stream: TokenStream) -> None:
    stream.put(TokenOutput(1, [], FinishReason.ERROR, error=("code", "wrong"), error_param="response_format"))
    with pytest.raises(RequestError) as caught:
        await stream.get()
    assert (caught.value.param, caught.value.code) == ("response_format", "code")


async def test_the_prompts_logprobs_stay_when_outputs_are_joined(stream: TokenStream) -> None:
    scores = [TokenLogprobs(5, -0.5, 1, [], [])]
    stream.put(TokenOutput(1, [7], prompt_logprobs=scores))
    stream.put(token(8))
    assert (await stream.get()).prompt_logprobs == scores


async def test_an_unread_stream_is_bounded(stream: TokenStream) -> None:
    assert all(stream.put(token(i)) for i in range(4))
    assert not stream.put(token(4))
    assert stream.ended
    assert (await stream.get()).token_ids == [0, 1, 2, 3]
    with pytest.raises(RequestError) as stalled:
        await stream.get()
    assert stalled.value.code == "CONSUMER_STALLED"


async def test_a_cancelled_consumer_does_not_break_the_producer(stream: TokenStream) -> None:
    waiting = asyncio.create_task(stream.get())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    stream.put(token(1))
    assert (await stream.get()).token_ids == [1]
