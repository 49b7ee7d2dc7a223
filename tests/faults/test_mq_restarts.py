"""Engines and clients that die and come back, again and again, under traffic; and what must not survive a death.

The property throughout: every request gets exactly one terminal event, and what came before it was right.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import zmq

from aphrodited import ENGINE_DEAD_ERROR, MQAphroditeEngineClient, SamplingParams
from aphrodited.errors import EXIT_CONFIG, AphroditeError, EngineStartingError, MQClientClosedError
from aphrodited.mq.client import MqClientConfig
from aphrodited.mq.codec import decode_data_reply, encode
from aphrodited.mq.messages import PROTOCOL_VERSION, Hello, HelloReply
from aphrodited.outputs import RequestOutput
from tests.support.engine_process import EngineProcess, engine_process, wait_until

NUM_RESTARTS = 50
PROMPT = [1, 2, 3]
CLIENT = textwrap.dedent(
    """
    import asyncio, sys
    from aphrodited import MQAphroditeEngineClient, SamplingParams

    async def consume(client, number):
        while True:
            async for answer in client.generate([1, 2, 3], SamplingParams(max_tokens=400), f"r{number}"):
                print("token", flush=True) if len(answer.outputs[0].token_ids) == 1 else None

    async def main():
        client = MQAphroditeEngineClient(sys.argv[1])
        await asyncio.gather(*(consume(client, number) for number in range(4)))

    asyncio.run(main())
    """
)


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


def echo(num_tokens: int) -> list[int]:
    return [PROMPT[position % 3] for position in range(num_tokens)]


async def how_it_ended(answers: AsyncIterator[RequestOutput]) -> str:
    """The one terminal event; asserts that it was one, and that all tokens before it were the right ones."""
    token_ids: list[int] = []
    num_finished = 0
    try:
        async for answer in answers:
            assert num_finished == 0, "nothing comes after the end"
            token_ids += answer.outputs[0].new_token_ids
            assert token_ids == echo(len(token_ids))
            assert answer.outputs[0].token_ids == token_ids
            num_finished += answer.finished
    except AphroditeError as error:
        assert num_finished == 0, "an answer ends once"
        return type(error).__name__
    assert num_finished == 1
    return "finished"


async def traffic(client: MQAphroditeEngineClient, endings: Counter[str], seed: int) -> None:
    """Requests of all lengths, one after the other, until the client is closed."""
    rng = random.Random(seed)
    while not client.closed:
        length = rng.choice((1, 5, 50, 2000))
        ending = await how_it_ended(client.generate(PROMPT, params(length), f"r{seed}"))
        endings[ending] += 1
        if ending != "finished":
            await client.wait_until_running(10) if not client.closed else None


async def until_idle(client: MQAphroditeEngineClient) -> None:
    while (await client.stats()).num_running:
        await asyncio.sleep(0.005)


# -- again and again -----------------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
async def test_an_engine_killed_fifty_times_ends_every_request_once() -> None:
    rng = random.Random(1)
    with engine_process(step_s=0.001) as engine:
        engine.start_and_wait()
        client = MQAphroditeEngineClient(engine.model_paths.folder)
        endings: Counter[str] = Counter()
        tasks = [asyncio.create_task(traffic(client, endings, seed)) for seed in range(8)]
        for number in range(1, NUM_RESTARTS + 1):
            before = endings.total()
            await wait_until(lambda before=before: endings.total() > before, 20)  # type: ignore[misc]
            assert client.generation == number
            engine.signal(rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGABRT)))
            await asyncio.to_thread(engine.wait)
            await asyncio.to_thread(engine.start_and_wait)
            assert await client.wait_until_running(20)
            assert not client.errored
        client.context.term()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.exception() is None or isinstance(task.exception(), MQClientClosedError) for task in tasks)
        assert endings["finished"] > 0
        assert endings["MQEngineDeadError"] > 0
        assert set(endings) <= {
            "finished", "MQEngineDeadError", "EngineStoppingError", "MQClientClosedError", "EngineError", "OutputLostError"
        }


@pytest.mark.timeout(400)
async def test_clients_killed_fifty_times_leave_nothing_in_the_engine() -> None:
    with engine_process(step_s=0.001) as engine:
        engine.start_and_wait()
        client = MQAphroditeEngineClient(engine.model_paths.folder)
        assert await client.wait_until_running(10)
        num_fds = engine.num_fds
        endings: Counter[str] = Counter()
        task = asyncio.create_task(traffic(client, endings, 0))
        for _ in range(NUM_RESTARTS // 5):
            others = [await asyncio.to_thread(spawn_client, engine) for _ in range(5)]
            await asyncio.gather(*(asyncio.to_thread(read_line, other) for other in others))
            for other in others:
                other.kill()
                other.communicate()
        client.close()
        await asyncio.gather(task, return_exceptions=True)
        assert set(endings) <= {"finished", "MQClientClosedError"}, "the neighbours' deaths are none of its business"
        last = MQAphroditeEngineClient(engine.model_paths.folder)
        assert await last.wait_until_running(10)
        await until_idle(last)
        await wait_until(lambda: engine.num_fds <= num_fds + 2)
        last.context.term()


@pytest.mark.timeout(120)
async def test_a_client_closed_and_made_fifty_times_attaches_every_time() -> None:
    with engine_process(step_s=0.001) as engine:
        engine.start_and_wait()
        for number in range(NUM_RESTARTS):
            client = MQAphroditeEngineClient(engine.model_paths.folder)
            requests = [
                asyncio.create_task(how_it_ended(client.generate(PROMPT, params(length), f"r{length}")))
                for length in (3, 2000, 2000)
            ]
            assert await requests[0] == "finished"
            client.context.term()
            assert [await request for request in requests[1:]] == ["MQClientClosedError"] * 2, number
        last = MQAphroditeEngineClient(engine.model_paths.folder)
        await last.check_health()
        await until_idle(last)
        last.context.term()


def spawn_client(engine: EngineProcess) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(engine.model_paths.folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def read_line(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == b"token\n"


# -- nothing of one life reaches the next ----------------------------------------------------------------------------


async def test_requests_queued_towards_a_dead_generation_never_reach_the_next() -> None:
    with engine_process(step_s=0.001) as engine:
        engine.start_and_wait()
        client = MQAphroditeEngineClient(engine.model_paths.folder)
        assert await client.wait_until_running(10)
        engine.signal(signal.SIGSTOP)  # it reads nothing more: what is sent now stays in the queues
        requests = [
            asyncio.create_task(how_it_ended(client.generate(PROMPT, params(5), f"r{number}"))) for number in range(20)
        ]
        await asyncio.sleep(0)
        await client.abort("r3")
        await client.check_health()  # a process that stands still is not a dead one
        engine.signal(signal.SIGKILL)
        endings = Counter([await request for request in requests])
        assert endings == {"MQEngineDeadError": 19, "finished": 1}  # the one that was aborted here
        await asyncio.to_thread(engine.wait)
        await asyncio.to_thread(engine.start_and_wait)
        assert await client.wait_until_running(10)
        assert await how_it_ended(client.generate(PROMPT, params(5), "mine")) == "finished"
        stats = await client.stats()
        assert (stats.num_finished, stats.num_aborted, stats.num_generated_tokens) == (1, 0, 5)
        client.context.term()


async def test_an_engine_that_stood_still_goes_on_where_it_was() -> None:
    with engine_process(step_s=0.001) as engine:
        engine.start_and_wait()
        client = MQAphroditeEngineClient(engine.model_paths.folder)
        request = asyncio.create_task(how_it_ended(client.generate(PROMPT, params(500), "r")))
        await client.wait_until_running(10)
        engine.signal(signal.SIGSTOP)
        for _ in range(20):
            await client.check_health()
            await asyncio.sleep(0.005)
        assert not request.done()
        assert client.is_running
        assert not client.errored
        engine.signal(signal.SIGCONT)
        assert await request == "finished"
        client.context.term()


async def test_a_client_of_another_version_is_refused_and_told_why() -> None:
    with engine_process() as engine:
        engine.start_and_wait()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context, context.socket(zmq.DEALER) as old:
            old.setsockopt(zmq.LINGER, 0)
            old.connect(engine.model_paths.endpoint(1, "data"))
            for version in (0, PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1):
                old.send(encode(Hello(version, "old")))
                assert await asyncio.to_thread(old.poll, 5000)
                reply = decode_data_reply(old.recv())
                assert isinstance(reply, HelloReply)
                assert not reply.accepted
                assert f"the client speaks protocol {version}" in reply.reason
        assert "hello_refused" in engine.log
        client = MQAphroditeEngineClient(engine.model_paths.folder)
        await client.check_health()
        client.context.term()


# -- before it serves ------------------------------------------------------------------------------------------------


async def test_an_engine_that_cannot_load_leaves_its_clients_waiting_and_well() -> None:
    with engine_process() as engine:
        config_file = Path(engine.config.models[0].path) / "config.json"
        good = config_file.read_text()
        client = MQAphroditeEngineClient(engine.model_paths.folder, MqClientConfig(start_timeout_s=0.2))
        config_file.write_text("{")
        engine.start()
        assert await asyncio.to_thread(engine.wait) == EXIT_CONFIG
        with pytest.raises(EngineStartingError):
            await client.check_health()
        assert not client.errored
        assert not client.is_running
        config_file.write_text(good)
        await asyncio.to_thread(engine.start_and_wait)
        assert await client.wait_until_running(10)
        assert await how_it_ended(client.generate(PROMPT, params(5), "r")) == "finished"
        client.context.term()


async def test_an_engine_killed_while_it_loads_is_replaced_unseen() -> None:
    with engine_process() as engine:
        client = MQAphroditeEngineClient(engine.model_paths.folder, MqClientConfig(start_timeout_s=20))
        request = asyncio.create_task(how_it_ended(client.generate(PROMPT, params(5), "r")))
        engine.start()
        await asyncio.sleep(0)
        engine.signal(signal.SIGKILL)
        await asyncio.to_thread(engine.wait)
        assert not request.done()
        await asyncio.to_thread(engine.start_and_wait)
        assert await request == "finished"
        client.context.term()


# -- a death between any two frames ------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
async def test_a_death_at_any_moment_of_the_last_frames_leaves_one_ending_each() -> None:
    """Answers as long as the engine has to live, more or less: deaths fall among the last frames."""
    rng = random.Random(5)
    endings: Counter[str] = Counter()
    with engine_process() as engine:
        client = MQAphroditeEngineClient(engine.model_paths.folder)
        for _ in range(10):
            await asyncio.to_thread(engine.start_and_wait)
            assert await client.wait_until_running(10)
            requests = [
                asyncio.create_task(how_it_ended(client.generate(PROMPT, params(100 + number), f"r{number}")))
                for number in range(50)
            ]
            num_to_wait_for = rng.randrange(50)
            await wait_until(lambda n=num_to_wait_for, r=requests: sum(map(asyncio.Task.done, r)) >= n)  # type: ignore[misc]
            engine.signal(signal.SIGKILL)
            for request in requests:
                endings[await request] += 1
            await asyncio.to_thread(engine.wait)
        with pytest.raises(ENGINE_DEAD_ERROR):
            await client.check_health()
        client.context.term()
    assert endings.total() == 500
    assert set(endings) <= {"finished", "MQEngineDeadError"}
    assert endings["finished"] > 0
