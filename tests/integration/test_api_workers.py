"""Real API workers, a real engine process and the official client, over real sockets."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from aiohttp import ClientSession

from aphrodited.config.schema import ApiConfig, ModelConfig, RecoveryConfig
from aphrodited.errors import EXIT_CONFIG, EXIT_OK
from aphrodited.page import Phase
from tests.support.api_workers import ApiWorkers, api_workers
from tests.support.engine_process import MODEL, wait_blocking, wait_until
from tests.support.sse import events

USER = {"role": "user", "content": "the quick brown fox"}
ENDLESS = {"model": MODEL, "prompt": "the dog", "max_tokens": 4000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def workers() -> Iterator[ApiWorkers]:
    """Two workers for the tests that do them no harm."""
    with api_workers(num_workers=2) as workers:
        yield workers


@pytest.fixture
async def client(workers: ApiWorkers) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="any", base_url=f"{workers.url}/v1", max_retries=0) as client:
        yield client


async def _complete(workers: ApiWorkers, **fields: object) -> tuple[int, Any]:
    body = {"prompt": "the fox", **fields}
    async with ClientSession(workers.url) as session, session.post("/v1/completions", json=body) as response:
        return response.status, await response.json()


# -- the official client ------------------------------------------------------------------------------------------


async def test_a_chat_by_the_official_client(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=[USER], max_completion_tokens=12, temperature=0, logprobs=True, top_logprobs=2, n=2
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    for choice in answer.choices:
        assert choice.message.role == "assistant"
        assert choice.message.content
        assert choice.finish_reason == "length"
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == 12


async def test_a_streamed_chat_gives_the_text_of_one_that_is_not(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model=MODEL, messages=[USER], max_tokens=12)
    stream = await client.chat.completions.create(
        model=MODEL, messages=[USER], max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


async def test_completions_by_the_official_client(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model=MODEL, prompt=["the fox", "the dog"], max_tokens=6, echo=True, n=2
    )
    assert [choice.text.startswith(("the fox", "the dog")) for choice in answer.choices] == [True] * 4
    stream = await client.completions.create(model=MODEL, prompt="the fox", max_tokens=6, logprobs=1, stream=True)
    chunks = [chunk async for chunk in stream]
    assert sum(len(c.choices[0].logprobs.tokens or []) for c in chunks if c.choices[0].logprobs) == 6


async def test_embeddings_by_the_official_client(client: openai.AsyncOpenAI, workers: ApiWorkers) -> None:
    texts = [f"the fox {i}" for i in range(100)]
    answer = await client.embeddings.create(model=MODEL, input=texts)  # asks for base64 by itself
    assert [entry.index for entry in answer.data] == list(range(100))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 100
    numbers = await client.embeddings.create(model=MODEL, input=texts[7], encoding_format="float")
    assert numbers.data[0].embedding == pytest.approx(answer.data[7].embedding)
    assert sum(number**2 for number in numbers.data[0].embedding) == pytest.approx(1.0)
    await client.embeddings.create(model=MODEL, input=[5, 6], dimensions=len(numbers.data[0].embedding), user="u")
    with pytest.raises(openai.BadRequestError) as bad:
        await client.embeddings.create(model=MODEL, input="a", dimensions=5)
    assert bad.value.param == "dimensions"
    with pytest.raises(openai.BadRequestError) as long:
        await client.embeddings.create(model=MODEL, input=[5] * 10_000)
    assert long.value.code == "context_length_exceeded"
    await wait_until(lambda: workers.engine.page().num_running == 0)


async def test_a_stop_string_ends_an_answer(client: openai.AsyncOpenAI, workers: ApiWorkers) -> None:
    answer = await client.completions.create(model=MODEL, prompt="a b c d e f", max_tokens=40, stop=["d"])
    assert answer.choices[0].finish_reason == "stop"
    assert "d" not in answer.choices[0].text
    await wait_until(lambda: workers.engine.page().num_running == 0)


async def test_errors_are_the_official_clients_own_types(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="nobody", messages=[USER])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model=MODEL, messages=[USER], temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        await client.completions.create(model=MODEL, prompt=[5] * 10_000)
    assert long.value.code == "context_length_exceeded"


# -- two workers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause_s", [0, 0.005])
async def test_connections_are_shared_out_evenly(workers: ApiWorkers, pause_s: float) -> None:
    before = [_num_connections(workers, index) for index in (0, 1)]
    peers = []
    for _ in range(32):
        peers.append(socket.create_connection(("127.0.0.1", workers.port)))
        await asyncio.sleep(pause_s)
    try:
        await wait_until(lambda: sum(_num_connections(workers, index) for index in (0, 1)) >= sum(before) + 32)
        counts = [_num_connections(workers, index) - before[index] for index in (0, 1)]
    finally:
        for peer in peers:
            peer.close()
    assert min(counts) >= 8, counts


def _num_connections(workers: ApiWorkers, index: int) -> int:
    found = psutil.Process(workers.processes[index].pid).net_connections("tcp4")
    return sum(1 for each in found if each.laddr.port == workers.port and each.status == psutil.CONN_ESTABLISHED)


async def test_no_worker_loads_torch(workers: ApiWorkers) -> None:
    for process in workers.processes:
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()


async def test_a_client_that_leaves_frees_the_engine(workers: ApiWorkers) -> None:
    for stream in (True, False):
        connection = http.client.HTTPConnection("127.0.0.1", workers.port)
        connection.request("POST", "/v1/completions", json.dumps({**ENDLESS, "stream": stream}))
        await wait_until(lambda: workers.engine.page().num_running == 1)
        connection.close()
        await wait_until(lambda: workers.engine.page().num_running == 0)


async def test_metrics_of_both_workers_are_one(workers: ApiWorkers) -> None:
    async def count() -> int:
        async with ClientSession(workers.url) as session, session.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        found = [line for line in lines if line.startswith("aphrodited_requests_total") and "/livez" in line]
        return int(float(found[0].split()[-1])) if found else 0

    before = await count()
    for _ in range(20):
        async with ClientSession(workers.url) as session, session.get("/livez") as response:
            assert response.status == 200
    assert await count() == before + 20


# -- deaths -------------------------------------------------------------------------------------------------------


async def test_streams_over_two_workers_are_told_of_the_engines_death_and_new_requests_wait_for_the_next() -> None:
    with api_workers(num_workers=2) as workers:
        async with ClientSession(workers.url) as session:

            answering = []

            async def stream() -> str:
                async with ClientSession(workers.url) as own, own.post("/v1/completions", json=ENDLESS) as response:
                    answering.append(response.status)
                    return await response.text()

            streams = [asyncio.create_task(stream()) for _ in range(8)]
            await wait_until(lambda: answering == [200] * 8)
            workers.engine.kill()
            for body in await asyncio.gather(*streams):
                failure, done = events(body)[-2:]
                assert failure["error"]["code"] == "ENGINE_DEAD"
                assert done == "[DONE]"
            async with session.get("/readyz") as response:
                assert response.status == 503
            waiting = asyncio.create_task(_complete(workers))
            await asyncio.to_thread(workers.engine.start_and_wait)
            assert (await waiting)[0] == 200


async def test_a_killed_worker_leaves_no_sequence_behind_and_the_other_one_serves() -> None:
    with api_workers(num_workers=2) as workers:
        streams = []
        for _ in range(8):
            connection = http.client.HTTPConnection("127.0.0.1", workers.port)
            connection.request("POST", "/v1/completions", json.dumps(ENDLESS))
            streams.append(connection)
        await wait_until(lambda: workers.engine.page().num_running == 8)
        running = [workers.page(index).num_running for index in (0, 1)]  # type: ignore[union-attr]
        await wait_until(lambda: sum(workers.page(index).num_running for index in (0, 1)) == 8)  # type: ignore[union-attr]
        running = [workers.page(index).num_running for index in (0, 1)]  # type: ignore[union-attr]
        workers.signal(0, signal.SIGKILL)
        await wait_until(lambda: workers.engine.page().num_running == running[1])
        assert (await _complete(workers))[0] == 200
        workers.processes[0].wait(5)
        for connection in streams:
            connection.close()


# -- signals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_signals", [1, 2])
async def test_sigterm_drains_and_then_ends_what_is_left(num_signals: int) -> None:
    api = ApiConfig(drain_timeout_s=1.0 if num_signals == 1 else 60.0)
    with api_workers(api=api) as workers:
        async with ClientSession(workers.url) as session:
            short = {**ENDLESS, "max_tokens": 30}
            responses = [await session.post("/v1/completions", json=body) for body in (ENDLESS, short)]
            workers.signal(0, signal.SIGTERM)
            if num_signals == 2:
                await wait_until(lambda: workers.page(0).phase is Phase.DRAINING)  # type: ignore[union-attr]
                workers.signal(0, signal.SIGTERM)
            *_, failure, done = events(await responses[0].text())
            assert (failure["error"]["code"], done) == ("SHUTTING_DOWN", "[DONE]")
            if num_signals == 2:
                responses[1].close()
            else:
                assert events(await responses[1].text())[-2]["choices"][0]["finish_reason"] == "length"
        assert await asyncio.to_thread(workers.processes[0].wait, 5) == EXIT_OK
        await wait_until(lambda: workers.engine.page().num_running == 0)


async def test_an_idle_worker_ends_at_once_and_another_takes_over_its_socket() -> None:
    with api_workers() as workers:
        idle = socket.create_connection(("127.0.0.1", workers.port))
        workers.signal(0, signal.SIGTERM)
        assert await asyncio.to_thread(workers.processes[0].wait, 5) == EXIT_OK
        idle.close()
        asking = asyncio.create_task(_complete(workers))
        workers.processes[0] = workers.start(0)
        assert (await asking)[0] == 200


async def test_sigusr2_writes_the_stacks_and_nothing_else_happens(workers: ApiWorkers) -> None:
    workers.signal(0, signal.SIGUSR2)
    await wait_until(lambda: "Current thread" in workers.log(0))
    assert workers.processes[0].poll() is None


# -- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "reason"),
    [
        (ApiConfig(keys_file="/nonexistent"), "/nonexistent cannot be read"),
        (ApiConfig(host="0.0.0.0"), "keys_file"),
    ],
)
async def test_a_worker_that_must_not_serve_says_why_and_exits_with_78(api: ApiConfig, reason: str) -> None:
    with api_workers(num_workers=0) as workers:
        workers.configure(api=api)
        workers.processes.append(workers.start(0))
        assert await asyncio.to_thread(workers.processes[0].wait, 20) == EXIT_CONFIG
        page = workers.page(0)
        assert page is not None
        assert page.phase is Phase.FAILED
        assert reason in page.message


async def test_a_model_that_cannot_be_read_leaves_the_others_alone(tmp_path: Path) -> None:
    with api_workers(num_workers=0) as workers:
        broken = ModelConfig("broken", str(tmp_path / "missing.gguf"), backend="null")
        workers.configure(models=(broken, *workers.engine.config.models))
        workers.processes.append(workers.start(0))
        wait_blocking(lambda: workers.is_ready(0), 20)
        assert (await _complete(workers, model=MODEL))[0] == 200
        status, body = await _complete(workers, model="broken")
        assert status == 503
        assert "missing.gguf" in body["error"]["message"]


async def test_an_absent_engine_is_held_for_as_long_as_configured() -> None:
    with api_workers(recovery=RecoveryConfig(hold_timeout_s=0.3)) as workers:
        workers.engine.kill()
        status, body = await _complete(workers)
        assert (status, body["error"]["code"]) == (503, "ENGINE_DEAD")
