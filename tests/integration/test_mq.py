"""Clients and a real engine process over real sockets; the null backend computes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import zmq

from aphrodited import MQAphroditeEngineClient, MQClientClosedError, MQEngineDeadError, SamplingParams
from aphrodited.config.schema import MqConfig
from aphrodited.errors import (
    EXIT_CONFIG,
    EXIT_OK,
    EXIT_TEMPORARY,
    EngineError,
    EngineStartingError,
    RequestAbortedError,
    RequestError,
)
from aphrodited.interfaces import EngineClient
from aphrodited.mq.client import MqClientConfig
from aphrodited.mq.codec import decode_heartbeat
from aphrodited.mq.endpoints import read_current
from aphrodited.outputs import FinishReason, RequestOutput
from aphrodited.page import Phase
from aphrodited.tokenizer.tokenizer import load_tokenizer
from tests.support.engine_process import MARKER, VOCAB_SIZE, EngineProcess, engine_process, wait_until
from tests.support.tiny_models import write_tiny_tokenizer

PROMPT = [1, 2, 3]
SLOW, NOT_FINITE = 3, 4


@pytest.fixture(scope="module", params=[False, True], ids=["one thread", "async sockets"])
def engine(request: pytest.FixtureRequest) -> Iterator[EngineProcess]:
    """One engine for the tests that do it no harm; a step takes 2 ms."""
    with engine_process(step_s=0.002, mq=MqConfig(async_sockets=request.param)) as process:
        process.start_and_wait()
        yield process


@pytest.fixture
async def client(engine: EngineProcess) -> AsyncIterator[MQAphroditeEngineClient]:
    client = make_client(engine)
    yield client
    client.context.term()


def make_client(engine: EngineProcess, **config: object) -> MQAphroditeEngineClient:
    return MQAphroditeEngineClient(engine.model_paths.folder, MqClientConfig(**config))  # type: ignore[arg-type]


def params(max_tokens: int = 5) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


async def until_running(client: MQAphroditeEngineClient, expected: int) -> None:
    """Wait until the engine computes so many requests; an answer about it may overtake a request or an abort."""
    while (await client.stats()).num_running != expected:
        await asyncio.sleep(0.005)


async def last_of(answers: AsyncIterator[RequestOutput]) -> RequestOutput:
    return [answer async for answer in answers][-1]


async def test_a_request_is_answered_token_by_token(client: MQAphroditeEngineClient) -> None:
    answers = [answer async for answer in client.generate(PROMPT, params(100), "r")]
    news = [answer.outputs[0].new_token_ids for answer in answers]
    assert all(news)
    assert [token for new in news for token in new] == [*PROMPT * 33, PROMPT[0]]
    assert 2 < len(answers) <= 100, "one for each token, but for those that the reader left waiting"
    assert [a.finished for a in answers] == [False] * (len(answers) - 1) + [True]
    assert answers[-1].outputs[0].finish_reason is FinishReason.LENGTH
    assert answers[-1].prompt_token_ids == PROMPT


async def test_it_is_an_engine_client(client: MQAphroditeEngineClient) -> None:
    seen: EngineClient = client
    assert await seen.wait_until_running(10)
    assert seen.is_running
    assert not seen.errored
    assert seen.facts is not None
    assert seen.facts.vocab_size == VOCAB_SIZE


async def test_two_clients_at_once_get_their_own_answers(engine: EngineProcess) -> None:
    clients = [make_client(engine), make_client(engine)]
    try:
        answers = await asyncio.gather(
            *(last_of(clients[i % 2].generate([10 + i, 500 + i], params(40), "same label")) for i in range(64))
        )
    finally:
        for each in clients:
            each.context.term()
    assert [a.outputs[0].token_ids for a in answers] == [[10 + i, 500 + i] * 20 for i in range(64)]


@pytest.mark.parametrize(
    ("prompt", "changes", "code"),
    [
        ([], {}, "invalid_request_error"),
        ([VOCAB_SIZE], {}, "invalid_request_error"),
        ([-1], {}, "invalid_request_error"),
        ([1] * 9000, {}, "context_length_exceeded"),
        ([1], {"temperature": float("nan")}, "invalid_request_error"),
        ([1], {"top_p": 0.0}, "invalid_request_error"),
        ([1], {"stop_token_ids": (VOCAB_SIZE + 5,)}, "invalid_request_error"),
    ],
)
async def test_a_bad_request_harms_nobody(
    engine: EngineProcess,
    client: MQAphroditeEngineClient,
    prompt: list[int],
    changes: dict[str, object],
    code: str,
) -> None:
    neighbour = asyncio.create_task(last_of(client.generate(PROMPT, params(50), "good")))
    pid = engine.pid
    with pytest.raises(RequestError) as caught:
        await last_of(client.generate(prompt, SamplingParams(**{"max_tokens": 3, **changes}), "bad"))  # type: ignore[arg-type]
    assert caught.value.code == code
    assert (await neighbour).finished
    assert engine.pid == pid
    assert not engine.has_ended


async def test_embeddings_arrive_beside_tokens(client: MQAphroditeEngineClient) -> None:
    running = asyncio.create_task(last_of(client.generate(PROMPT, params(50), "r")))
    made = await asyncio.gather(*(client.encode([i, i + 1], f"e{i}", pooling="mean") for i in range(64)))
    assert len({embedding.data for embedding in made}) == 64
    assert client.facts is not None
    assert all(len(embedding.values) == client.facts.embedding_size for embedding in made)
    assert (await client.encode([5, 6], "again", pooling="mean")).data == made[5].data
    assert (await client.encode([6], "plain", normalize=False)).data != (await client.encode([6], "unit")).data
    assert (await running).outputs[0].token_ids == (PROMPT * 17)[:50]


@pytest.mark.parametrize(
    ("prompt", "pooling", "code"),
    [
        ([], "last", "invalid_request_error"),
        ([VOCAB_SIZE], "last", "invalid_request_error"),
        ([1] * 9000, "last", "context_length_exceeded"),
        ([1], "max", "invalid_request_error"),
        ([MARKER, MARKER, NOT_FINITE], "mean", "not_finite"),
    ],
)
async def test_what_cannot_be_embedded_is_told(
    client: MQAphroditeEngineClient, prompt: list[int], pooling: str, code: str
) -> None:
    with pytest.raises(RequestError) as caught:
        await client.encode(prompt, "bad", pooling=pooling)
    assert caught.value.code == code


async def test_an_embedding_ends_with_its_abort_its_consumer_and_its_engine() -> None:
    with engine_process() as engine:
        engine.start_and_wait()
        client = make_client(engine)
        slow = [MARKER, MARKER, SLOW, 2, *range(500)]
        aborted = asyncio.create_task(client.encode(slow, "a"))
        left = asyncio.create_task(client.encode(slow, "b"))
        died = asyncio.create_task(client.encode(slow, "c"))
        await asyncio.sleep(0)
        await client.wait_until_running(10)
        await wait_until(lambda: engine.page().has_work)
        await client.abort("a")
        with pytest.raises(RequestAbortedError):
            await aborted
        left.cancel()
        await asyncio.wait([left])
        engine.kill()
        with pytest.raises(MQEngineDeadError):
            await died
        client.context.term()


async def test_a_request_larger_than_a_frame_is_refused_here(engine: EngineProcess) -> None:
    small = make_client(engine, mq=engine.config.mq.__class__(max_message_size=65536))
    try:
        with pytest.raises(RequestError, match="bytes and the engine takes") as caught:
            await last_of(small.generate([999] * 30_000, params(), "r"))
        assert caught.value.code == "request_too_large"
        assert (await last_of(small.generate(PROMPT, params(), "r"))).finished
    finally:
        small.context.term()


async def test_abort_ends_the_stream_and_frees_the_engine(engine: EngineProcess, client: MQAphroditeEngineClient) -> None:
    num_aborted = (await client.stats()).num_aborted
    answers = client.generate(PROMPT, params(5000), "r")
    await anext(answers)
    await client.abort("r")
    last = await last_of(answers)
    assert last.outputs[0].finish_reason is FinishReason.ABORT
    await until_running(client, 0)
    stats = await client.stats()
    assert stats.num_blocks_used == 0
    assert stats.num_aborted == num_aborted + 1


async def test_aborting_nothing_is_harmless(client: MQAphroditeEngineClient) -> None:
    await client.abort("never heard of")
    await last_of(client.generate(PROMPT, params(), "r"))
    await client.abort("r")
    await client.check_health()


async def test_leaving_the_stream_aborts(client: MQAphroditeEngineClient) -> None:
    answers = client.generate(PROMPT, params(5000), "r")
    await anext(answers)
    await until_running(client, 1)
    await answers.aclose()  # type: ignore[attr-defined]
    await until_running(client, 0)


async def test_cancelling_the_consumer_aborts(client: MQAphroditeEngineClient) -> None:
    task = asyncio.create_task(last_of(client.generate(PROMPT, params(5000), "r")))
    await client.wait_until_running(10)
    await until_running(client, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_running(client, 0)


async def test_a_client_that_closes_frees_its_sequences(engine: EngineProcess, client: MQAphroditeEngineClient) -> None:
    other = make_client(engine)
    answers = other.generate(PROMPT, params(5000), "r")
    await anext(answers)
    await until_running(client, 1)
    other.context.term()
    await until_running(client, 0)


async def test_text_goes_in_and_comes_out(engine: EngineProcess, tmp_path: Path) -> None:
    path = write_tiny_tokenizer(tmp_path / "tokenizer")
    client = make_client(engine, tokenizer_path=path)
    try:
        last = await last_of(client.generate("the quick dog", params(60), "r"))
        assert last.prompt == "the quick dog"
        assert last.outputs[0].text.startswith("the quick dogthe quick dog")
        stopped = SamplingParams(max_tokens=5000, stop=("quick",))
        last = await last_of(client.generate("the quick dog", stopped, "r"))
        assert last.outputs[0].text == "the "
        assert last.outputs[0].stop_reason == "quick"
        await until_running(client, 0)  # a stop string aborts the sequence
    finally:
        client.context.term()


async def test_ids_go_in_and_text_comes_out(engine: EngineProcess, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tiny_tokenizer(tmp_path / "tokenizer"))
    client = make_client(engine, tokenizer=tokenizer)
    try:
        last = await last_of(client.generate(tokenizer.encode("a dog"), params(8), "r"))
        assert last.outputs[0].text.startswith("a dog")
    finally:
        client.context.term()


async def test_a_text_prompt_without_a_tokenizer_is_a_clear_error(client: MQAphroditeEngineClient) -> None:
    with pytest.raises(RequestError, match="needs a tokenizer"):
        await last_of(client.generate("text", params(), "r"))


async def test_statistics_are_logged_on_request(engine: EngineProcess, client: MQAphroditeEngineClient) -> None:
    before = engine.log.count("stats_reported")
    await client.do_log_stats()
    await wait_until(lambda: engine.log.count("stats_reported") == before + 1)


async def test_the_page_tells_what_the_engine_does(engine: EngineProcess, client: MQAphroditeEngineClient) -> None:
    await last_of(client.generate(PROMPT, params(), "r"))
    await wait_until(lambda: not engine.page().has_work)
    page = engine.page()
    assert (page.phase, page.generation, page.num_running) == (Phase.READY, 1, 0)
    assert page.num_finished > 0
    stands_at = engine.page().num_ticks
    await wait_until(lambda: engine.page().num_ticks > stands_at, 3)  # an idle engine ticks too
    answers = client.generate(PROMPT, params(5000), "r")
    await anext(answers)
    await wait_until(lambda: engine.page().phase is Phase.STEPPING)
    assert engine.page().allowance_s >= engine.config.recovery.hang_min_s
    assert engine.page().has_work
    await answers.aclose()  # type: ignore[attr-defined]


async def test_heartbeats_are_published(engine: EngineProcess) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(engine.model_paths.endpoint(1, "health"))
        await wait_until(lambda: bool(socket.poll(0)), 5)
        beat = decode_heartbeat(socket.recv())
    assert beat.generation == 1
    assert beat.stats.num_blocks_total > 0


async def test_after_term_every_method_says_closed(engine: EngineProcess) -> None:
    client = make_client(engine)
    running = asyncio.create_task(last_of(client.generate(PROMPT, params(5000), "r")))
    await client.wait_until_running(10)
    await until_running(client, 1)
    began_at_s = time.monotonic()
    client.context.term()
    assert time.monotonic() - began_at_s < 2
    client.context.term()
    assert client.context.closed
    for call in (
        lambda: last_of(client.generate(PROMPT, params(), "r")),
        lambda: client.encode(PROMPT, "r"),
        lambda: client.abort("r"),
        client.check_health,
        client.do_log_stats,
        lambda: client.wait_until_running(1),
        lambda: running,
    ):
        with pytest.raises(MQClientClosedError):
            await call()


def test_a_client_made_outside_a_loop_works_inside_one(engine: EngineProcess) -> None:
    client = make_client(engine)
    last = asyncio.run(last_of(client.generate(PROMPT, params(), "r")))
    client.context.term()  # after its loop has ended
    assert last.finished


DROPS_ITS_CLIENT = """
import asyncio, gc, sys
from aphrodited import MQAphroditeEngineClient, SamplingParams

async def ask():
    client = MQAphroditeEngineClient(sys.argv[1])
    assert await client.wait_until_running(10)
    return [answer async for answer in client.generate([1, 2, 3], SamplingParams(max_tokens=3), "r")][-1].finished

print(asyncio.run(ask()), gc.collect() > 0, flush=True)
"""


def test_a_client_that_nobody_closed_lets_its_process_go_on_and_end(engine: EngineProcess) -> None:
    command = [sys.executable, "-c", DROPS_ITS_CLIENT, str(engine.model_paths.folder)]
    done = subprocess.run(command, timeout=30, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


async def test_a_client_without_an_engine_says_so(tmp_path: Path) -> None:
    client = MQAphroditeEngineClient(str(tmp_path), MqClientConfig(start_timeout_s=0.1))
    try:
        assert not await client.wait_until_running(0.1)
        with pytest.raises(EngineStartingError, match="no engine has announced itself"):
            await client.check_health()
        with pytest.raises(EngineStartingError):
            await last_of(client.generate(PROMPT, params(), "r"))
        assert not client.errored
    finally:
        client.context.term()


# -- lives and deaths that are meant -----------------------------------------------------------------------------


async def test_a_request_waits_for_the_first_engine() -> None:
    with engine_process() as engine:
        client = make_client(engine, start_timeout_s=30.0)
        request = asyncio.create_task(last_of(client.generate(PROMPT, params(), "r")))
        await asyncio.sleep(0)
        engine.start()
        assert (await request).finished
        client.context.term()


async def test_ten_lives_leave_nothing_behind() -> None:
    with engine_process() as engine:
        client = make_client(engine, start_timeout_s=30.0)
        num_fds = num_threads = engine_fds = None
        for life in range(1, 11):
            await asyncio.to_thread(engine.start_and_wait)
            assert await client.wait_until_running(10)
            assert client.generation == life
            assert (await last_of(client.generate(PROMPT, params(), "r"))).finished
            folders = [path.name for path in engine.model_paths.folder.iterdir() if path.is_dir()]
            assert folders == [str(life)]
            helpers = sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())
            counts = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")) - helpers, engine.num_fds
            if num_fds is None:
                num_fds, num_threads, engine_fds = counts
            assert counts == (num_fds, num_threads, engine_fds)
            await asyncio.to_thread(engine.kill)
            await wait_until(lambda: client.errored)
        client.context.term()


async def test_a_stopping_engine_finishes_what_runs() -> None:
    with engine_process(step_s=0.01) as engine:
        engine.start_and_wait()
        client = make_client(engine, start_timeout_s=0.05)
        answers = client.generate(PROMPT, params(50), "r")
        await anext(answers)
        engine.signal(signal.SIGTERM)
        await wait_until(lambda: not client.is_running)
        assert engine.page().phase is Phase.DRAINING
        with pytest.raises(EngineError) as refused:
            await last_of(client.generate(PROMPT, params(), "late"))
        assert (refused.value.code, refused.value.http_status) == ("ENGINE_STARTING", 503)
        assert (await last_of(answers)).outputs[0].finish_reason is FinishReason.LENGTH
        assert await asyncio.to_thread(engine.wait) == EXIT_OK
        await wait_until(lambda: client.errored)
        assert str(client.dead_error) == "the engine is dead: the engine was stopped"
        assert [path.name for path in engine.model_paths.folder.iterdir()] == ["lock"]
        client.context.term()


@pytest.mark.parametrize("num_signals", [1, 2])
async def test_a_stop_ends_long_requests_in_time(num_signals: int) -> None:
    with engine_process(step_s=0.01, stop_timeout_s=2.5 if num_signals == 1 else 60) as engine:
        engine.start_and_wait()
        client = make_client(engine)
        answers = client.generate(PROMPT, params(8000), "r")
        await anext(answers)
        for _ in range(num_signals):
            engine.signal(signal.SIGTERM)
            await asyncio.sleep(0.05)
        with pytest.raises(EngineError) as ended:
            await last_of(answers)
        assert ended.value.code == "SHUTTING_DOWN"
        assert await asyncio.to_thread(engine.wait, 10) == EXIT_OK
        client.context.term()


async def test_a_stopping_engine_drains_beside_its_successor() -> None:
    """One client: what runs goes on in the old one, what is new goes to the next, which another client finds too."""
    with engine_process(step_s=0.02, stop_timeout_s=60) as engine:
        engine.start_and_wait()
        client = make_client(engine)
        answers = client.generate(PROMPT, params(200), "r")
        await anext(answers)
        old = engine._process
        assert old is not None
        engine.signal(signal.SIGTERM)
        await wait_until(lambda: not client.is_running)
        assert await asyncio.to_thread(engine.start_and_wait) == 2
        assert (await last_of(client.generate(PROMPT, params(), "new"))).finished
        assert old.poll() is None
        assert (await last_of(answers)).outputs[0].finish_reason is FinishReason.LENGTH
        assert await asyncio.to_thread(old.wait, 10) == EXIT_OK
        await wait_until(lambda: client._follower is not None and len(client._follower.connections) == 1)
        assert (client.generation, client.errored) == (2, False)
        client.context.term()


def test_an_idle_engine_stops_at_once() -> None:
    with engine_process() as engine:
        engine.start_and_wait()
        began_at_s = time.monotonic()
        engine.signal(signal.SIGTERM)
        assert engine.wait(10) == EXIT_OK
        assert time.monotonic() - began_at_s < 5


def test_a_second_engine_of_a_model_leaves_the_first_alone() -> None:
    with engine_process() as engine:
        engine.start_and_wait()
        current, first = read_current(engine.model_paths), engine._process
        engine.start()
        assert engine.wait(30) == EXIT_TEMPORARY
        assert "another engine process holds" in engine.log
        assert read_current(engine.model_paths) == current
        engine._process = first


def test_a_model_that_cannot_be_loaded_says_why_on_its_page() -> None:
    with engine_process() as engine:
        config = Path(engine.config.models[0].path) / "config.json"
        config.write_text("{ damaged")
        engine.start()
        assert engine.wait(30) == EXIT_CONFIG
        assert engine.page().phase is Phase.FAILED
        assert str(config) in engine.page().message


def test_a_program_that_no_model_has_is_a_configuration_error() -> None:
    with engine_process() as engine:
        engine.program = "engine-00000000-0"
        engine.start()
        assert engine.wait(30) == EXIT_CONFIG
        assert "no model of the configuration has an engine process called" in engine.log


async def test_sigusr2_writes_the_stacks(engine: EngineProcess) -> None:
    engine.signal(signal.SIGUSR2)
    await wait_until(lambda: "most recent call first" in engine.log)
    assert not engine.has_ended


async def test_the_dead_are_told_apart_from_the_closed(engine: EngineProcess) -> None:
    client = make_client(engine)
    client.close()
    assert isinstance(client.dead_error, MQClientClosedError)
    assert not isinstance(client.dead_error, MQEngineDeadError)
