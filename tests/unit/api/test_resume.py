"""An engine that dies at every point of an answer: the client gets what it would have got of one that lives."""

import asyncio
import json

import msgspec
import pytest

from aphrodited.api.context import CONTEXT
from aphrodited.api.resume import RETRY_S
from aphrodited.api.served_model import Availability
from aphrodited.errors import (
    EngineStartingError,
    EngineStoppingError,
    MQEngineDeadError,
    OutputLostError,
    QueueFullError,
    RequestAbortedError,
)
from tests.support.sse import events
from tests.support.waiting import wait_until

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ANSWER = "Paris is où? ab"
LABELS = {"model": "fake/model"}

FEATURES = {
    "plain": (COMPLETIONS, {}),
    "chat": (CHAT, {"logprobs": True, "top_logprobs": 2}),
    "stop": (COMPLETIONS, {"stop": ["is ou", "ab"], "logprobs": 1}),
    "held back": (COMPLETIONS, {"stop": ["Paris is one"]}),
    "included stop": (CHAT, {"stop": ["?"], "include_stop_str_in_output": True}),
    "length": (COMPLETIONS, {"max_tokens": 7, "min_tokens": 3}),
    "two choices": (COMPLETIONS, {"n": 2, "seed": 7}),
    "two prompts": (COMPLETIONS, {"prompt": ["Hi", "A"], "n": 2, "echo": True, "logprobs": 0}),
    "usage": (CHAT, {"stream_options": {"include_usage": True}}),
    "prompt logprobs": (COMPLETIONS, {"prompt_logprobs": 1}),
    "sampling": (CHAT, {"temperature": 0.7, "presence_penalty": 0.5, "response_format": {"type": "json_object"}}),
}


@pytest.fixture(autouse=True)
def resuming(stage):
    stage.recovery = msgspec.structs.replace(stage.recovery, on_engine_death="resume", max_held_requests=8)
    stage.engine.answer = ANSWER


def body_of(path, fields, stream):
    prompt = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT else {"prompt": "Hi"}
    body = {"max_tokens": 50, "request_id": "r", **prompt, **fields, "stream": stream}
    if not stream:
        body.pop("stream_options", None)
    return body


async def ask(client, path=COMPLETIONS, *, stream=False, **fields):
    response = await client.post(path, json=body_of(path, fields, stream))
    text = await response.text()
    assert response.status == 200, text
    found = events(text)[:-1] if stream else [json.loads(text)]
    for told in found:
        told.pop("created", None)
    return found


def sample(stage, name):
    return stage.app[CONTEXT].generator.metrics.registry.get_sample_value(name, LABELS) or 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("feature", FEATURES)
async def test_a_death_at_any_point_changes_no_byte(client, stage, feature, stream):
    path, fields = FEATURES[feature]
    if stream and feature == "prompt logprobs":
        pytest.skip("prompt_logprobs are not streamed")
    undisturbed = await ask(client, path, stream=stream, **fields)
    for position in range(len(stage.engine.answer)):
        stage.engine.deaths = [position]
        assert await ask(client, path, stream=stream, **fields) == undisturbed
    stage.engine.deaths = [0, 0, 2, 2, 3, 6]
    assert await ask(client, path, stream=stream, **fields) == undisturbed


async def test_what_was_received_is_submitted_again_behind_the_prompt(client, stage):
    stage.engine.deaths = [0, 3, 5]
    await ask(client, prompt_logprobs=0, temperature=0.5, priority=4)
    first, again, *later = stage.engine.requests
    prompt = first.prompt_token_ids
    assert again == first
    assert [request.num_replayed for request in later] == [3, 5]
    assert [request.prompt_token_ids for request in later] == [[*prompt, *map(ord, text)] for text in ("Par", "Paris")]
    assert first.sampling_params.prompt_logprobs == 0
    assert first.sampling_params.seed is not None
    for request in later:  # the prompt's were received, and are not asked for again
        assert request.sampling_params == msgspec.structs.replace(first.sampling_params, prompt_logprobs=None)
        assert (request.request_id, request.priority) == ("r", 4)


async def test_each_resume_is_counted(client, stage):
    stage.engine.deaths = [0, 3, 5]
    await ask(client)
    assert sample(stage, "aphrodited_resumed_requests_total") == 3
    assert sample(stage, "aphrodited_resumed_tokens_total") == 8
    assert sample(stage, "aphrodited_completion_tokens_total") == len(stage.engine.answer)
    assert sample(stage, "aphrodited_prompt_tokens_total") == 3


async def test_lost_output_is_resumed_too(client, stage):
    undisturbed = await ask(client)
    stage.engine.failure = OutputLostError("frames were lost")
    stage.engine.deaths = [2]
    assert await ask(client) == undisturbed


async def test_an_embedding_is_made_again(client, stage):
    stage.engine.die_after = 2
    response = await client.post("/v1/embeddings", json={"input": ["a", "b"]})
    assert response.status == 200
    assert len(stage.engine.encode_calls) == 3
    assert sample(stage, "aphrodited_resumed_requests_total") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_it_waits_for_the_next_engine_while_comments_keep_the_stream_open(client, stage, stream):
    undisturbed = await ask(client, stream=stream)
    admission = stage.app[CONTEXT].admission
    die(stage, 4)
    asking = asyncio.create_task(client.post(COMPLETIONS, json=body_of(COMPLETIONS, {}, stream)))
    await wait_until(lambda: admission.num_held == 1)
    assert admission.held_bytes == 8 * (3 + 4)
    await asyncio.sleep(1.2 if stream else 0)  # longer than keepalive_s
    stage.engine.is_running = True
    text = await (await asking).text()
    assert (": keep-alive" in text) == stream
    found = events(text)[:-1] if stream else [json.loads(text)]
    assert [{**told, "created": 0} for told in found] == [{**told, "created": 0} for told in undisturbed]
    assert admission.num_held == admission.held_bytes == 0


async def test_a_client_that_leaves_meanwhile_leaves_the_queue(client, stage):
    admission = stage.app[CONTEXT].admission
    die(stage, 4)
    asking = asyncio.create_task(client.post(COMPLETIONS, json=body_of(COMPLETIONS, {}, False)))
    await wait_until(lambda: admission.num_held == 1)
    asking.cancel()
    await wait_until(lambda: admission.num_held == 0)
    assert admission.num_running == 0
    assert len(stage.engine.requests) == 1


def die(stage, position):
    """The engine is to die there, and no other one to run at once."""
    stage.engine.deaths, stage.engine.has_successor = [position], False


# -- limits -------------------------------------------------------------------------------------------------------


async def refused(client, stream=False, status=503, **fields):
    response = await client.post(COMPLETIONS, json=body_of(COMPLETIONS, fields, stream))
    text = await response.text()
    if stream and response.status == 200:
        *_, failure, done = events(text)
        assert done == "[DONE]"
        return failure["error"], response
    assert response.status == status, text
    return json.loads(text)["error"], response


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_resumed_so_many_times_and_not_more(stage, connect, stream):
    stage.recovery = msgspec.structs.replace(stage.recovery, max_resumes=3)
    client = await connect()
    stage.engine.deaths = [2, 4, 6, 8]
    error, response = await refused(client, stream)
    assert error["code"] == "ENGINE_DEAD"
    assert "killed by a test" in error["message"]
    assert "resumed 3 times" in error["message"]
    assert len(stage.engine.requests) == 4
    assert stream or response.headers["Retry-After"] == "1"


@pytest.mark.parametrize("stream", [False, True])
async def test_with_fail_the_error_comes_at_once(stage, connect, stream):
    stage.recovery = msgspec.structs.replace(stage.recovery, on_engine_death="fail")
    client = await connect()
    stage.engine.deaths = [2]
    error, _ = await refused(client, stream)
    assert error["code"] == "ENGINE_DEAD"
    assert len(stage.engine.requests) == 1


@pytest.mark.parametrize(
    "changes", [{"fingerprint": "other weights"}, {"max_model_len": 52}], ids=["fingerprint", "max_model_len"]
)
async def test_an_engine_that_computes_otherwise_does_not_go_on(client, stage, changes):
    facts = stage.engine.facts
    stage.engine.gate.clear()
    stage.engine.gate_after = 3
    asking = asyncio.create_task(refused(client))
    await asyncio.wait_for(stage.engine.started.wait(), 5)
    stage.engine.facts = msgspec.structs.replace(facts, **changes)
    stage.engine.deaths = [3]
    stage.engine.gate.set()
    error, _ = await asking
    assert error["code"] == "ENGINE_DEAD"
    assert "another model" in error["message"]
    assert len(stage.engine.requests) == 1


async def test_it_fails_when_no_engine_is_due_in_time(client, stage):
    stage.expected = Availability("parked", 300.0, "three strikes")
    die(stage, 4)
    error, response = await refused(client)
    assert error["code"] == "ENGINE_DEAD"
    assert "three strikes" in error["message"]
    assert response.headers["Retry-After"] == "300"


async def test_the_hold_time_begins_with_the_death(stage, connect):
    stage.recovery = msgspec.structs.replace(stage.recovery, hold_timeout_s=0.2)
    client = await connect()
    die(stage, 4)
    stage.engine.errored = True
    stage.engine.failure = stage.engine.dead_error = MQEngineDeadError("the engine died: killed by a test")
    error, _ = await refused(client)
    assert error["code"] == "ENGINE_DEAD"
    assert "within the 0.2 s" in error["message"]
    assert error["message"].count("killed by a test") == 1


async def test_the_queue_bounds_those_that_wait_again(stage, connect):
    stage.recovery = msgspec.structs.replace(stage.recovery, max_held_requests=1)
    client = await connect()
    die(stage, 4)
    error, _ = await refused(client, n=2)
    assert error["code"] == "ENGINE_DEAD"
    assert "too many" in error["message"]
    assert stage.app[CONTEXT].admission.num_held == 0


async def test_an_abort_in_the_engine_is_not_resumed(client, stage):
    stage.engine.failure = RequestAbortedError("somebody ended it")
    stage.engine.deaths = [2]
    error, _ = await refused(client)
    assert error["code"] == "REQUEST_ABORTED"
    assert len(stage.engine.requests) == 1


# -- engines that take nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal",
    [EngineStartingError("not yet"), EngineStoppingError("the engine is shutting down")],
    ids=["starting", "stopping"],
)
async def test_an_engine_that_takes_nothing_now_is_asked_again(client, stage, refusal):
    stage.engine.refusal = refusal
    asking = asyncio.create_task(ask(client))
    await wait_until(lambda: len(stage.engine.requests) == 3)
    stage.engine.refusal = None
    (answer,) = await asking
    assert answer["choices"][0]["text"] == stage.engine.answer


async def test_a_full_queue_is_told_to_a_new_request_and_waited_for_by_an_interrupted_one(client, stage):
    stage.engine.refusal = QueueFullError("full")
    error, _ = await refused(client, status=429)
    assert error["code"] == "QUEUE_FULL"
    stage.engine.refusal = None
    stage.engine.gate.clear()
    stage.engine.gate_after = 3
    asking = asyncio.create_task(ask(client))
    await asyncio.wait_for(stage.engine.started.wait(), 5)
    stage.engine.refusal, stage.engine.deaths = QueueFullError("full"), [3]
    stage.engine.gate.set()
    await wait_until(lambda: len(stage.engine.requests) == 4)
    stage.engine.refusal = None
    (answer,) = await asking
    assert answer["choices"][0]["text"] == stage.engine.answer
    assert sample(stage, "aphrodited_resumed_requests_total") == 1


async def test_it_is_not_asked_for_longer_than_the_hold_time(stage, connect):
    stage.recovery = msgspec.structs.replace(stage.recovery, hold_timeout_s=3 * RETRY_S)
    client = await connect()
    stage.engine.refusal = EngineStoppingError("the engine is shutting down")
    error, _ = await refused(client)
    assert error["code"] == "SHUTTING_DOWN"
    assert 2 <= len(stage.engine.requests) <= 4


# -- the worker's end, and deadlines ------------------------------------------------------------------------------


async def test_a_draining_worker_lets_an_interrupted_request_go_on(client, stage):
    admission = stage.app[CONTEXT].admission
    die(stage, 4)
    asking = asyncio.create_task(ask(client))
    await wait_until(lambda: admission.num_held == 1)
    admission.stop()
    stage.engine.is_running = True
    (answer,) = await asking
    assert answer["choices"][0]["text"] == stage.engine.answer


@pytest.mark.parametrize("where", ["held", "running", "interrupted"])
async def test_the_deadline_counts_from_the_arrival_wherever_the_request_is(stage, connect, where):
    stage.api = msgspec.structs.replace(stage.api, deadline_s=0.3)
    client = await connect()
    if where == "held":
        stage.engine.is_running = False
    elif where == "running":
        stage.engine.gate.clear()
    else:
        die(stage, 4)
    error, _ = await refused(client, status=504)
    assert (error["code"], error["type"]) == ("DEADLINE_EXCEEDED", "timeout_error")
    assert stage.app[CONTEXT].admission.num_held == 0
    await wait_until(lambda: stage.engine.num_open == 0)
