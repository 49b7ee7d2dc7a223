"""What becomes of requests, clients and the engine when something between them goes wrong. Real processes and sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq

from aphrodited import ENGINE_DEAD_ERROR, MQAphroditeEngineClient, SamplingParams
from aphrodited.config.schema import MqConfig
from aphrodited.errors import EXIT_ENGINE_FAILED, EngineError, OutputLostError, RequestError
from aphrodited.mq import follower
from aphrodited.mq.client import MqClientConfig
from aphrodited.mq.codec import encode
from aphrodited.mq.messages import (
    AbortRequest,
    Attach,
    Detach,
    Dropped,
    EngineDead,
    EngineEvent,
    EventKind,
    HandingOver,
    RequestFailed,
    StepOutputs,
    Submit,
)
from aphrodited.outputs import FinishReason, RequestOutput
from aphrodited.page import Phase
from aphrodited.paths import ModelPaths
from aphrodited.request import GenerateRequest
from tests.support.engine_process import MARKER, EngineProcess, engine_process, wait_until
from tests.support.scripted_engine import scripted_engine, token

PROMPT = [1, 2, 3]
RAISE, NOT_FINITE = 1, 4


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    with engine_process(step_s=0.002) as process:
        process.start_and_wait()
        yield process


@pytest.fixture
async def client(engine: EngineProcess) -> AsyncIterator[MQAphroditeEngineClient]:
    client = make_client(engine.model_paths)
    yield client
    client.context.term()


@pytest.fixture
def model_paths() -> Iterator[ModelPaths]:
    """Of a model whose engine is a scripted one."""
    with engine_process() as process:
        yield process.model_paths


def make_client(paths: ModelPaths, **config: object) -> MQAphroditeEngineClient:
    return MQAphroditeEngineClient(paths.folder, MqClientConfig(**config))  # type: ignore[arg-type]


def params(max_tokens: int = 5) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


async def last_of(answers: AsyncIterator[RequestOutput]) -> RequestOutput:
    return [answer async for answer in answers][-1]


async def until_running(client: MQAphroditeEngineClient, expected: int) -> None:
    while (await client.stats()).num_running != expected:
        await asyncio.sleep(0.005)


# -- the engine dies ---------------------------------------------------------------------------------------------


async def test_a_killed_engine_ends_every_request_within_a_second(engine: EngineProcess, client: MQAphroditeEngineClient) -> None:
    requests = [asyncio.create_task(last_of(client.generate(PROMPT, params(5000), f"r{i}"))) for i in range(10)]
    await client.wait_until_running(10)
    await until_running(client, 10)
    killed_at_s = time.monotonic()
    engine.signal(signal.SIGKILL)
    errors = await asyncio.gather(*requests, return_exceptions=True)
    assert time.monotonic() - killed_at_s < 1
    assert [type(error) for error in errors] == [ENGINE_DEAD_ERROR] * 10
    assert str(errors[0]) == f"the engine is dead: engine process {engine.pid} of generation 1 is gone"
    assert client.errored
    assert not client.is_running
    with pytest.raises(ENGINE_DEAD_ERROR):
        await client.check_health()
    with pytest.raises(ENGINE_DEAD_ERROR):
        await last_of(client.generate(PROMPT, params(), "late"))
    await client.abort("r1")  # harmless
    engine.wait()
    await asyncio.to_thread(engine.start_and_wait)
    assert await client.wait_until_running(10)
    assert not client.errored
    assert (await last_of(client.generate(PROMPT, params(), "next"))).finished


async def test_the_last_frames_of_a_killed_engine_are_applied(model_paths: ModelPaths) -> None:
    """Frames that were sent before the death are answers, however late they are read."""
    code = textwrap.dedent(
        f"""
        import asyncio, os, signal, sys
        from pathlib import Path
        from aphrodited.paths import ModelPaths
        from aphrodited.mq.messages import StepOutputs
        from aphrodited.outputs import FinishReason
        from tests.support.scripted_engine import scripted_engine, token

        async def main():
            with scripted_engine(ModelPaths(Path({str(model_paths.folder)!r}))) as engine:
                submit = await engine.next_submit()
                for frame in range(500):
                    engine.send(StepOutputs(frame, [token(submit.number, frame)]))
                engine.send(StepOutputs(500, [token(submit.number, 7, FinishReason.STOP)]))
                await asyncio.sleep(0.2)
                os.kill(os.getpid(), signal.SIGKILL)

        asyncio.run(main())
        """
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    client = make_client(model_paths, start_timeout_s=20)
    answers = client.generate(PROMPT, params(501), "r")
    first = asyncio.ensure_future(anext(answers))
    await client.wait_until_running(20)
    await wait_until(first.done)
    time.sleep(0.5)  # the event loop stands still while the engine goes on and dies
    last = await last_of(answers)
    assert process.wait() == -signal.SIGKILL
    assert len(last.outputs[0].token_ids) == 501
    assert last.outputs[0].finish_reason is FinishReason.STOP
    client.context.term()


async def test_a_step_that_raises_is_told_with_its_cause(engine: EngineProcess, client: MQAphroditeEngineClient) -> None:
    neighbour = asyncio.create_task(last_of(client.generate(PROMPT, params(5000), "neighbour")))
    await client.wait_until_running(10)
    await until_running(client, 1)
    with pytest.raises(ENGINE_DEAD_ERROR) as died:
        await last_of(client.generate([MARKER, MARKER, RAISE, 3], params(100), "poison"))
    assert died.value.cause == "DrillError: drill: this step was asked to fail after 3 tokens"
    with pytest.raises(ENGINE_DEAD_ERROR, match="asked to fail"):
        await neighbour
    assert await asyncio.to_thread(engine.wait) == EXIT_ENGINE_FAILED
    page = engine.page()
    assert page.phase is Phase.FAILED
    assert "asked to fail" in page.message
    assert "Traceback" in engine.log


async def test_a_request_that_fails_alone_fails_alone(client: MQAphroditeEngineClient) -> None:
    neighbour = asyncio.create_task(last_of(client.generate(PROMPT, params(50), "neighbour")))
    with pytest.raises(RequestError):
        await last_of(client.generate([MARKER, MARKER, NOT_FINITE, 3], params(100), "poison"))
    assert (await neighbour).finished


async def test_the_cause_of_a_death_is_heard_from_events(engine: EngineProcess) -> None:
    endpoint = f"ipc://{engine.paths.runtime_dir}/events.sock"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PUB) as events:
        events.bind(endpoint)
        client = make_client(engine.model_paths, events_endpoint=endpoint)
        await client.wait_until_running(10)
        event = EngineEvent(EventKind.ENGINE_DEAD, "drill", 1, engine.pid, "killed by signal SIGKILL")
        answers = client.generate(PROMPT, params(5000), "r")
        await anext(answers)
        for _ in range(20):  # a subscription takes a moment to arrive
            events.send(encode(event))
            events.send(b"garbage")
            await asyncio.sleep(0.02)
        engine.signal(signal.SIGKILL)
        with pytest.raises(ENGINE_DEAD_ERROR, match="killed by signal SIGKILL"):
            await last_of(answers)
        client.context.term()


# -- a client dies, stalls, or talks nonsense ----------------------------------------------------------------------


@asynccontextmanager
async def client_process(engine: EngineProcess, num_requests: int) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A client process whose requests all have their first tokens; killed at the end of the block."""
    code = textwrap.dedent(
        f"""
        import asyncio
        from aphrodited import MQAphroditeEngineClient, SamplingParams

        async def consume(client, i):
            answers = client.generate([1, 2, 3], SamplingParams(max_tokens=8000), f"r{{i}}")
            await anext(answers)  # of several tokens, if it comes late
            print("first", flush=True)
            async for _ in answers:
                pass

        async def main():
            client = MQAphroditeEngineClient({str(engine.model_paths.folder)!r})
            await asyncio.gather(*(consume(client, i) for i in range({num_requests})))

        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            for _ in range(num_requests):
                assert await asyncio.to_thread(process.stdout.readline) == b"first\n"
            yield process
        finally:
            process.kill()


async def test_a_killed_client_frees_its_sequences_within_a_second(engine: EngineProcess, client: MQAphroditeEngineClient) -> None:
    async with client_process(engine, 4) as other:
        assert (await client.stats()).num_running == 4
        mine = client.generate(PROMPT, params(5000), "mine")
        await anext(mine)
        other.kill()
        killed_at_s = time.monotonic()
        await until_running(client, 1)
        assert time.monotonic() - killed_at_s < 1
        await anext(mine)
        await mine.aclose()  # type: ignore[attr-defined]


async def test_a_stopped_client_is_dropped_and_told_so() -> None:
    with engine_process(step_s=0.005, mq=MqConfig(output_hwm=16)) as engine:
        engine.start_and_wait()
        client = make_client(engine.model_paths)
        async with client_process(engine, 4) as other:
            other.send_signal(signal.SIGSTOP)
            await until_running(client, 0)
            await wait_until(lambda: "client_dropped" in engine.log)
            assert (await last_of(client.generate(PROMPT, params(), "r"))).finished, "the step was never held up"
            other.send_signal(signal.SIGCONT)
            await wait_until(lambda: '"reason":"dropped"' in engine.log)
            assert await asyncio.to_thread(other.wait, 10) == 1  # its requests raised OutputLostError
        client.context.term()


async def test_a_consumer_that_does_not_read_is_aborted(client: MQAphroditeEngineClient, engine: EngineProcess) -> None:
    lazy = make_client(engine.model_paths, max_unread=20)
    answers = lazy.generate(PROMPT, params(5000), "lazy")
    await anext(answers)
    busy = lazy.generate(PROMPT, params(5000), "busy")
    for _ in range(60):
        await anext(busy)
    await busy.aclose()  # type: ignore[attr-defined]
    await until_running(client, 0)
    with pytest.raises(RequestError, match="20 outputs wait to be read") as stalled:
        await last_of(answers)
    assert stalled.value.code == "CONSUMER_STALLED"
    lazy.context.term()


GARBAGE = [
    b"",
    b"\x00",
    b"garbage",
    b"\xff" * 1000,
    b"\x91" * 100_000,
    encode(["submit", "nobody", 1, ["generate", "r", ["not a number"], []]]),
    encode(["something", "new"]),
    encode(Submit("nobody", 1, GenerateRequest("r", PROMPT, params()))),
    encode(AbortRequest("nobody", 1)),
    encode(Detach("nobody")),
    encode(Attach("nobody", 1 << 40, 1)),
    encode(Attach("nobody", os.getpid(), 0)),
    encode(Attach("nobody", -1, -1)),
    encode(EngineDead("I say so")),
]


async def test_garbage_on_every_socket_leaves_the_engine_alive(engine: EngineProcess, client: MQAphroditeEngineClient) -> None:
    answers = client.generate(PROMPT, params(5000), "r")
    await anext(answers)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context:
        for kind, socket_type in (
            ("input", zmq.PUSH),
            ("output", zmq.DEALER),
            ("data", zmq.DEALER),
            ("health", zmq.XSUB),
            ("input", zmq.DEALER),  # a pair that the protocol refuses
        ):
            with context.socket(socket_type) as stranger:
                stranger.setsockopt(zmq.LINGER, 200)
                stranger.setsockopt(zmq.SNDTIMEO, 100)
                stranger.connect(engine.model_paths.endpoint(1, kind))
                try:
                    for frame in GARBAGE:
                        stranger.send(frame)
                        stranger.send_multipart([frame, frame, b"more"])
                except zmq.Again:
                    assert (kind, socket_type) == ("input", zmq.DEALER)
    for kind in ("input", "output", "data", "health"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(engine.model_paths.endpoint(1, kind).removeprefix("ipc://"))
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
    await wait_until(lambda: "bad_frame" in engine.log)
    for _ in range(20):
        await anext(answers)
    assert client.generation == 1
    assert not engine.has_ended
    assert engine.log.count("message_refused") < 20, "a flood of garbage does not fill the log"
    await answers.aclose()  # type: ignore[attr-defined]


async def test_a_name_is_taken_by_one_connection_only(engine: EngineProcess, client: MQAphroditeEngineClient) -> None:
    """Nobody detaches or impersonates another client on the output socket."""
    answers = client.generate(PROMPT, params(5000), "r")
    await anext(answers)
    active = client._follower.active  # type: ignore[union-attr]
    assert active is not None
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 200)
        stranger.connect(engine.model_paths.endpoint(1, "output"))
        stranger.send(encode(Detach(active._name)))
        stranger.send(encode(Attach(active._name, os.getpid(), 0)))
        await wait_until(lambda: "unknown_client" in engine.log and "attach_refused" in engine.log)
    for _ in range(10):
        await anext(answers)
    await answers.aclose()  # type: ignore[attr-defined]


# -- the engine talks nonsense -------------------------------------------------------------------------------------


async def test_a_gap_in_the_frames_fails_its_requests_and_attaches_anew(model_paths: ModelPaths) -> None:
    with scripted_engine(model_paths) as engine:
        client = make_client(model_paths)
        answers = client.generate(PROMPT, params(), "r")
        first = asyncio.ensure_future(anext(answers))
        submit = await engine.next_submit()
        engine.send(StepOutputs(0, [token(submit.number, 5)]))
        assert (await first).outputs[0].token_ids == [5]
        engine.send(StepOutputs(2, [token(submit.number, 6)]))
        with pytest.raises(OutputLostError, match="frame 1 was due and 2 came"):
            await anext(answers)
        await wait_until(lambda: len(engine.attached) == 2)
        assert engine.detached == [engine.attached[0]]
        assert engine.attached[0] != engine.attached[1], "an engine never meets a name twice"
        again = asyncio.ensure_future(last_of(client.generate(PROMPT, params(), "r")))
        submit = await engine.next_submit()
        engine.send(StepOutputs(0, [token(submit.number, 7, FinishReason.STOP)]))
        assert (await again).outputs[0].token_ids == [7]
        client.context.term()


@pytest.mark.parametrize(
    ("frame", "error", "message"),
    [
        (Dropped("too slow"), OutputLostError, "the engine dropped this client: too slow"),
        (EngineDead("out of luck"), ENGINE_DEAD_ERROR, "the engine is dead: out of luck"),
        (RequestFailed(0, 1, "QUEUE_FULL", "full", 429), RequestError, "full"),
        (RequestFailed(0, 1, "internal", "broken", 500), EngineError, "broken"),
        (["not", "ours"], OutputLostError, "a frame could not be read"),
    ],
)
async def test_each_bad_news_ends_the_request_once(
    model_paths: ModelPaths, frame: object, error: type[Exception], message: str
) -> None:
    with scripted_engine(model_paths) as engine:
        client = make_client(model_paths)
        request = asyncio.ensure_future(last_of(client.generate(PROMPT, params(), "r")))
        await engine.next_submit()
        engine.send(frame)  # type: ignore[arg-type]
        engine.send(frame)  # type: ignore[arg-type]
        with pytest.raises(error, match=message):
            await request
        client.context.term()


async def test_outputs_of_unknown_numbers_are_passed_over(model_paths: ModelPaths) -> None:
    with scripted_engine(model_paths) as engine:
        client = make_client(model_paths)
        request = asyncio.ensure_future(last_of(client.generate(PROMPT, params(), "r")))
        submit = await engine.next_submit()
        engine.send(StepOutputs(0, [token(77, 1), token(submit.number, 5)]))
        engine.send(RequestFailed(1, 78, "code", "nobody asked"))
        engine.send(StepOutputs(2, [token(submit.number, 6, FinishReason.LENGTH)]))
        assert (await request).outputs[0].token_ids == [5, 6]
        client.context.term()


async def test_versions_that_differ_are_told_clearly(model_paths: ModelPaths) -> None:
    with scripted_engine(model_paths) as engine:
        engine.protocol_version = 99
        client = make_client(model_paths)
        await client.wait_until_running(0.2)
        await wait_until(lambda: client.errored)
        with pytest.raises(EngineError, match="the versions differ") as mismatch:
            await client.check_health()
        assert mismatch.value.code == "PROTOCOL_MISMATCH"
        client.context.term()


async def test_a_greeting_is_repeated_until_it_is_answered(model_paths: ModelPaths) -> None:
    with scripted_engine(model_paths) as engine:
        engine.answers_hello = False
        client = make_client(model_paths, mq=MqConfig(attach_timeout_s=0.05))
        assert not await client.wait_until_running(0.3)
        engine.answers_hello = True
        assert await client.wait_until_running(5)
        assert len(set(engine.attached)) == 1
        client.context.term()


@pytest.mark.parametrize("told", [True, False])
async def test_a_hand_over_lets_the_old_engine_finish(
    model_paths: ModelPaths, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    monkeypatch.setattr(follower, "RUNNING_POLL_S", 3600 if told else 0.02)
    with scripted_engine(model_paths) as old:
        client = make_client(model_paths)
        answers = client.generate(PROMPT, params(), "r")
        first = asyncio.ensure_future(anext(answers))
        submit = await old.next_submit()
        old.send(StepOutputs(0, [token(submit.number, 5)]))
        await first
        if told:
            old.send(HandingOver())
            await wait_until(lambda: not client.is_running)
            assert not client.errored
        old.hand_over()
        with scripted_engine(model_paths) as new:
            await wait_until(lambda: client.generation == new.generation)
            other = asyncio.ensure_future(last_of(client.generate(PROMPT, params(), "s")))
            number = (await new.next_submit()).number
            new.send(StepOutputs(0, [token(number, 8, FinishReason.STOP)]))
            assert (await other).outputs[0].token_ids == [8]
            old.send(StepOutputs(1, [token(submit.number, 6, FinishReason.STOP)]))
            assert (await last_of(answers)).outputs[0].token_ids == [5, 6]
            if told:
                old.send(EngineDead("the engine was stopped"))
            await wait_until(lambda: len(client._start().connections) == 1)
            await wait_until(lambda: old.detached == ([] if told else old.attached))
            assert client.is_running
            client.context.term()


async def test_an_announcement_of_a_dead_engine_is_no_engine(engine: EngineProcess) -> None:
    engine.kill()
    assert Path(engine.model_paths.current).exists()
    client = make_client(engine.model_paths)
    assert not await client.wait_until_running(0.3)
    await asyncio.to_thread(engine.start_and_wait)
    assert await client.wait_until_running(5)
    client.context.term()


async def test_a_client_outlives_what_it_cannot_read(model_paths: ModelPaths) -> None:
    model_paths.current.mkdir(parents=True)
    client = make_client(model_paths)
    assert not await client.wait_until_running(0.1)
    model_paths.current.rmdir()
    with scripted_engine(model_paths):
        assert await client.wait_until_running(5)
        client.context.term()
