"""Requests that end engines, as their clients see it: suspects go on alone, the convicted get 422."""

import asyncio
import json
from dataclasses import replace

import msgspec
import pytest

from aphrodited.api.context import CONTEXT
from aphrodited.api.served_model import Availability
from aphrodited.errors import MQEngineDeadError
from aphrodited.rulings import Rulings, RulingsReader, Suspect, boottime_s, write_rulings
from tests.support.sse import events
from tests.support.waiting import wait_until

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "a"}]},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 50},
    EMBEDDINGS: {"input": "Hi"},
}


@pytest.fixture(autouse=True)
def rulings_path(stage, tmp_path):
    stage.recovery = msgspec.structs.replace(stage.recovery, on_engine_death="resume", max_held_requests=8)
    path = tmp_path / "rulings"
    stage.models["fake/model"] = replace(stage.models["fake/model"], rulings=RulingsReader(path))
    stage.engine.failure = MQEngineDeadError("the engine is dead: a test", generation=1)
    return path


async def fingerprint_of(client, stage, path=COMPLETIONS, **fields):
    """That of a request that is answered."""
    response = await client.post(path, json={**BODIES[path], **fields})
    text = await response.text()
    assert response.status == 200, text
    return stage.engine.requests[-1].fingerprint if path != EMBEDDINGS else stage.engine.fingerprints[-1]


def convict(path, *fingerprints, left_s=1800.0, judged=(1,)):
    until_s = boottime_s() + left_s
    write_rulings(path, Rulings(judged=judged, convicted={each.hex(): until_s for each in fingerprints}))


async def refused(client, path=COMPLETIONS, **fields):
    response = await client.post(path, json={**BODIES[path], **fields})
    text = await response.text()
    assert response.status == 422, text
    error = json.loads(text)["error"]
    assert (error["code"], error["type"]) == ("REQUEST_QUARANTINED", "invalid_request_error")
    return response, error


def sample(stage):
    registry = stage.app[CONTEXT].generator.metrics.registry
    return registry.get_sample_value("aphrodited_quarantined_requests_total", {"model": "fake/model"}) or 0


@pytest.mark.parametrize("path", BODIES)
async def test_a_convicted_request_is_refused_before_it_is_submitted(client, stage, rulings_path, path):
    convict(rulings_path, await fingerprint_of(client, stage, path))
    num_submitted = len(stage.engine.requests) + len(stage.engine.encode_calls)
    response, error = await refused(client, path, request_id="again")
    assert 1790 <= int(response.headers["Retry-After"]) <= 1800
    assert response.headers["x-should-retry"] == "false"
    assert "30 minutes" in error["message"]
    assert len(stage.engine.requests) + len(stage.engine.encode_calls) == num_submitted
    assert sample(stage) == 1
    convict(rulings_path)
    await fingerprint_of(client, stage, path)


async def test_it_is_refused_while_there_is_no_engine_too(client, stage, rulings_path):
    convict(rulings_path, await fingerprint_of(client, stage))
    stage.engine.is_running = False
    await asyncio.wait_for(refused(client), 2)


@pytest.mark.parametrize(
    ("fields", "is_the_same"),
    [
        ({}, True),
        ({"request_id": "other", "stream": True}, True),
        ({"n": 2}, True),
        ({"user": "somebody"}, True),
        ({"seed": 3}, False),
        ({"temperature": 0.5}, False),
        ({"max_tokens": 49}, False),
        ({"prompt": "Ho"}, False),
        ({"prompt": "Hi "}, False),
        ({"stop": ["x"]}, False),
        ({"logit_bias": {"5": 1}}, False),
    ],
)
async def test_a_request_is_its_prompt_and_its_parameters(client, stage, fields, is_the_same):
    first = await fingerprint_of(client, stage)
    assert len(first) == 16
    assert (await fingerprint_of(client, stage, **fields) == first) is is_the_same


async def test_each_prompt_of_several_is_a_request_of_its_own(client, stage, rulings_path):
    await (await client.post(COMPLETIONS, json={"prompt": ["Hi", "Ho"], "n": 2})).text()
    names = [request.fingerprint for request in stage.engine.requests]
    assert [names.count(name) for name in names] == [2] * 4
    convict(rulings_path, names[-1])
    await refused(client, prompt=["Hi", "Ho"], max_tokens=None)


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_is_convicted_by_a_death_is_told_so_where_it_is(client, stage, rulings_path, stream):
    convict(rulings_path, await fingerprint_of(client, stage), judged=())
    convicted = rulings_path.read_bytes()
    rulings_path.unlink()
    stage.engine.started.clear()
    stage.engine.gate.clear()
    stage.engine.gate_after = 3
    asking = asyncio.create_task(client.post(COMPLETIONS, json={**BODIES[COMPLETIONS], "stream": stream}))
    await asyncio.wait_for(stage.engine.started.wait(), 5)
    stage.engine.deaths = [3]
    num_submitted = len(stage.engine.requests)
    rulings_path.write_bytes(convicted)
    stage.engine.gate.set()
    text = await (await asking).text()
    if stream:
        *chunks, failure, done = events(text)
        assert ("".join(chunk["choices"][0]["text"] for chunk in chunks), done) == ("Par", "[DONE]")
    else:
        failure = json.loads(text)
    assert failure["error"]["code"] == "REQUEST_QUARANTINED"
    assert len(stage.engine.requests) == num_submitted
    assert sample(stage) == 1


async def test_one_that_is_convicted_while_the_model_is_parked_is_not_told_another_reason(client, stage, rulings_path):
    fingerprint = await fingerprint_of(client, stage)
    stage.engine.deaths, stage.engine.has_successor = [3], False
    stage.expected = Availability("parked", 300.0, "three strikes")
    asking = asyncio.create_task(refused(client))
    await asyncio.sleep(0.02)
    convict(rulings_path, fingerprint)
    await asking


async def test_a_suspect_goes_on_alone_and_a_new_request_of_the_kind_does_not(client, stage, rulings_path):
    fingerprint = await fingerprint_of(client, stage)
    write_rulings(rulings_path, Rulings(judged=(1,), suspects={fingerprint.hex(): Suspect(9, boottime_s())}))
    stage.engine.deaths = [0, 3]
    await fingerprint_of(client, stage)
    assert [request.alone_until for request in stage.engine.requests[1:]] == [0, 9, 9]


async def test_with_fail_its_client_is_the_one_that_submits_it_again(stage, connect, rulings_path):
    stage.recovery = msgspec.structs.replace(stage.recovery, on_engine_death="fail")
    client = await connect()
    fingerprint = await fingerprint_of(client, stage)
    write_rulings(rulings_path, Rulings(judged=(1,), suspects={fingerprint.hex(): Suspect(9, boottime_s())}))
    await fingerprint_of(client, stage)
    assert [request.alone_until for request in stage.engine.requests] == [0, 9]


async def test_a_suspected_embedding_is_made_alone(client, stage, rulings_path):
    fingerprint = await fingerprint_of(client, stage, EMBEDDINGS)
    write_rulings(rulings_path, Rulings(judged=(1,), suspects={fingerprint.hex(): Suspect(9, boottime_s())}))
    stage.engine.die_after = 2
    await fingerprint_of(client, stage, EMBEDDINGS)
    assert stage.engine.alone_untils == [0, 0, 9]


async def test_without_a_judge_it_goes_on_after_a_moment(client, stage, rulings_path):
    stage.engine.deaths = [0, 3]
    await fingerprint_of(client, stage)
    assert [request.alone_until for request in stage.engine.requests] == [0, 0, 0]


async def test_a_judgement_that_comes_in_time_is_waited_for(client, stage, rulings_path):
    fingerprint = await fingerprint_of(client, stage)
    stage.engine.deaths = [3]
    asking = asyncio.create_task(fingerprint_of(client, stage))
    await wait_until(lambda: not stage.engine.deaths)
    write_rulings(rulings_path, Rulings(judged=(1,), suspects={fingerprint.hex(): Suspect(9, boottime_s())}))
    await asking
    assert stage.engine.requests[-1].alone_until == 9
