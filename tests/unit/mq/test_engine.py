"""Tests of aphrodited.mq.engine that need no process of their own: an engine in a thread, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest

from aphrodited import MQAphroditeEngineClient, SamplingParams
from aphrodited.bench.silent_engine import SilentBackend
from aphrodited.mq import engine as engine_module
from aphrodited.mq.endpoints import promote
from aphrodited.mq.engine import MQAphroditeEngine
from aphrodited.outputs import RequestOutput, TokenOutput
from aphrodited.page import PageWriter
from aphrodited.paths import ModelPaths


class CountingBackend(SilentBackend):
    """Remembers how many requests each step found."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def step(self) -> list[TokenOutput]:
        outputs = super().step()
        self.counts.append(len(outputs))
        return outputs


@asynccontextmanager
async def serving(model_paths: ModelPaths) -> AsyncIterator[CountingBackend]:
    backend = CountingBackend()
    with closing(PageWriter(model_paths.folder / "page")) as page, closing(promote(model_paths)) as generation:
        engine = MQAphroditeEngine(backend, generation, page)
        running = asyncio.create_task(asyncio.to_thread(engine.run))
        try:
            yield backend
        finally:
            engine.request_stop()
            await running


async def ask(client: MQAphroditeEngineClient, label: str) -> RequestOutput:
    return [answer async for answer in client.generate([1], SamplingParams(max_tokens=3), label)][-1]


@pytest.mark.parametrize("follows", [False, True])
async def test_an_engine_that_follows_another_begins_with_what_all_clients_bring(
    model_paths: ModelPaths, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    monkeypatch.setattr(engine_module, "GATHER_S", 2.0)
    if follows:
        promote(model_paths).close()
    clients = [MQAphroditeEngineClient(model_paths.folder) for _ in range(2)]
    try:
        async with serving(model_paths) as backend:
            for client in clients:
                assert await client.wait_until_running(10)
            first = asyncio.create_task(ask(clients[0], "first"))
            await asyncio.sleep(0.1)
            assert (await ask(clients[1], "second")).finished
            assert (await first).finished
            later = await asyncio.wait_for(ask(clients[0], "later"), 1.9)  # nothing is gathered any more
            assert later.finished
    finally:
        for client in clients:
            client.close()
    assert backend.counts[0] == (2 if follows else 1)
