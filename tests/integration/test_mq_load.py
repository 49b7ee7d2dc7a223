"""Very many requests at once over MQ: each gets exactly its tokens."""

from __future__ import annotations

import asyncio

import pytest

from aphrodited import MQAphroditeEngineClient, SamplingParams
from aphrodited.config.schema import EngineConfig, MqConfig
from aphrodited.mq.client import MqClientConfig
from tests.support.engine_process import VOCAB_SIZE, engine_process

NUM_REQUESTS = 10_000
NUM_TOKENS = 6


@pytest.mark.timeout(180)
@pytest.mark.parametrize("async_sockets", [False, True])
async def test_ten_thousand_requests_of_two_clients_get_exactly_their_tokens(async_sockets: bool) -> None:
    mq = MqConfig(input_hwm=NUM_REQUESTS, async_sockets=async_sockets)
    with engine_process(mq=mq) as engine:
        engine.configure_model(engine=EngineConfig(max_num_seqs=512, max_num_waiting=NUM_REQUESTS))
        engine.start_and_wait()
        clients = [
            MQAphroditeEngineClient(engine.model_paths.folder, MqClientConfig(mq=mq, name=name)) for name in ("a", "b")
        ]
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)

        async def generate(number: int) -> tuple[list[int], int]:
            """Its tokens, and how many outputs said that it was finished."""
            prompt = [number % 997, number // 997, number % 991]  # echoed, so no two answers are alike
            answers = [answer async for answer in clients[number % 2].generate(prompt, params, f"r{number}")]
            assert [token for answer in answers for token in answer.outputs[0].new_token_ids] == answers[-1].outputs[
                0
            ].token_ids
            return answers[-1].outputs[0].token_ids, sum(answer.finished for answer in answers)

        await asyncio.gather(*(client.wait_until_running(20) for client in clients))
        answers = await asyncio.gather(*map(generate, range(NUM_REQUESTS)))
        for number, (token_ids, num_finished) in enumerate(answers):
            prompt = [number % 997, number // 997, number % 991]
            assert max(prompt) < VOCAB_SIZE - 1
            assert token_ids == [*prompt, *prompt], number
            assert num_finished == 1
        stats = await clients[0].stats()
        assert (stats.num_running, stats.num_waiting, stats.num_finished) == (0, 0, NUM_REQUESTS)
        for client in clients:
            client.context.term()
