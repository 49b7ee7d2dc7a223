"""Tests of aphrodited.async_engine, with the null backend's engine in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from aphrodited import ENGINE_DEAD_ERROR, AsyncAphrodite, MQClientClosedError, SamplingParams
from aphrodited.config.schema import ModelConfig
from aphrodited.engine.null_backend import DEFAULT_VOCAB_SIZE
from aphrodited.errors import RequestAbortedError, RequestError
from aphrodited.interfaces import EngineClient
from aphrodited.outputs import FinishReason, RequestOutput
from aphrodited.request import GenerateRequest

MARKER = DEFAULT_VOCAB_SIZE - 1
RAISE, NOT_FINITE = 1, 4


@pytest.fixture
async def engine() -> AsyncIterator[AsyncAphrodite]:
    engine = AsyncAphrodite.from_engine_args(ModelConfig("m", "nowhere", backend="null"))
    yield engine
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]


async def last_of(answers: AsyncIterator[RequestOutput]) -> RequestOutput:
    return [answer async for answer in answers][-1]


async def test_requests_are_answered_side_by_side(engine: AsyncAphrodite) -> None:
    seen: EngineClient = engine
    params = SamplingParams(max_tokens=6)
    answers = await asyncio.gather(*(last_of(seen.generate([i, i + 1], params, f"r{i}")) for i in range(20)))
    assert [answer.outputs[0].token_ids for answer in answers] == [[i, i + 1] * 3 for i in range(20)]
    await engine.check_health()
    assert (await engine.stats()).num_finished == 20


async def test_a_bad_request_is_refused_alone(engine: AsyncAphrodite) -> None:
    good = asyncio.create_task(last_of(engine.generate([1], SamplingParams(max_tokens=50), "good")))
    with pytest.raises(RequestError):
        await last_of(engine.generate([], SamplingParams(), "empty"))
    with pytest.raises(RequestError, match="needs a tokenizer"):
        await last_of(engine.generate("text", SamplingParams(), "text"))
    with pytest.raises(RequestError):
        await last_of(engine.generate([MARKER, MARKER, NOT_FINITE, 2], SamplingParams(max_tokens=9), "nan"))
    with pytest.raises(RequestError, match="pooling"):
        await engine.encode([1], "embed", pooling="max")
    assert (await good).finished


async def test_an_answer_can_be_put_together_elsewhere_and_goes_on_from_any_token(engine: AsyncAphrodite) -> None:
    seen: EngineClient = engine
    params = SamplingParams(max_tokens=7)
    whole = (await last_of(seen.generate([5, 6, 7], params, "whole"))).outputs[0].token_ids
    for cut in range(1, 7):
        received = whole[:cut]
        async with seen.open(GenerateRequest("r", [5, 6, 7, *received], params, num_replayed=cut)) as source:
            while (output := await source.get()).finish_reason is None:
                received = received + output.token_ids
        assert received + output.token_ids == whole
    async with seen.open(GenerateRequest("left", [5], SamplingParams(max_tokens=4000))) as source:
        await source.get()
    await asyncio.wait_for(last_of(seen.generate([1], params, "next")), 10)
    assert (await engine.stats()).num_aborted == 1


async def test_prompts_are_embedded_beside_others(engine: AsyncAphrodite) -> None:
    running = asyncio.create_task(last_of(engine.generate([1], SamplingParams(max_tokens=50), "r")))
    embeddings = await asyncio.gather(*(engine.encode([i, 7], f"e{i}", pooling="mean") for i in range(20)))
    assert len({embedding.data for embedding in embeddings}) == 20
    assert embeddings[3].values == (await engine.encode([3, 7], "again", pooling="mean")).values
    assert engine.facts is not None
    assert len(embeddings[0].values) == engine.facts.embedding_size
    await running


async def test_an_aborted_embedding_is_told_and_one_that_nobody_awaits_is_ended(engine: AsyncAphrodite) -> None:
    encoding = asyncio.create_task(engine.encode([1, 2], "e"))
    await asyncio.sleep(0)  # it is submitted, and nothing can have come back yet
    await engine.abort("e")
    with pytest.raises(RequestAbortedError):
        await encoding
    forgotten = asyncio.create_task(engine.encode([1, 2], "f"))
    await asyncio.sleep(0)
    forgotten.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forgotten
    stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)


async def test_abort_and_leaving_free_the_engine(engine: AsyncAphrodite) -> None:
    answers = engine.generate([1], SamplingParams(max_tokens=8000), "r")
    await anext(answers)
    await engine.abort("r")
    assert (await last_of(answers)).outputs[0].finish_reason is FinishReason.ABORT
    other = engine.generate([1], SamplingParams(max_tokens=8000), "s")
    await anext(other)
    await other.aclose()  # type: ignore[attr-defined]
    await engine.abort("unknown")
    stats = await engine.stats()
    assert (stats.num_running, stats.num_blocks_used) == (0, 0)


async def test_a_step_that_raises_ends_everything_with_its_cause(engine: AsyncAphrodite) -> None:
    other = asyncio.create_task(last_of(engine.generate([1], SamplingParams(max_tokens=8000), "other")))
    with pytest.raises(ENGINE_DEAD_ERROR, match="asked to fail"):
        await last_of(engine.generate([MARKER, MARKER, RAISE, 2], SamplingParams(max_tokens=9), "poison"))
    with pytest.raises(ENGINE_DEAD_ERROR):
        await other
    assert engine.errored
    assert not engine.is_running
    assert not await engine.wait_until_running(0)
    with pytest.raises(ENGINE_DEAD_ERROR, match="asked to fail"):
        await engine.check_health()


async def test_a_closed_engine_says_so(engine: AsyncAphrodite) -> None:
    running = asyncio.create_task(last_of(engine.generate([1], SamplingParams(max_tokens=8000), "r")))
    while not (await engine.stats()).num_running:
        await asyncio.sleep(0)
    engine.close()
    engine.close()
    with pytest.raises(MQClientClosedError):
        await running
    with pytest.raises(MQClientClosedError):
        await engine.check_health()
    with pytest.raises(MQClientClosedError):
        await last_of(engine.generate([1], SamplingParams(), "late"))
