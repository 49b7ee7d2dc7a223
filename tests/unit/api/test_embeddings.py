"""POST /v1/embeddings over a fake engine, whose embedding is (0.5, -0.1, last token)."""

import asyncio
import base64
import struct

import msgspec
import pytest

from aphrodited.api.context import CONTEXT
from aphrodited.api.encodings import MAX_AT_ONCE
from aphrodited.errors import ContextLengthError, QueueFullError
from tests.support.waiting import wait_until

URL = "/v1/embeddings"


def embedding(**fields):
    return {"model": "fake/model", "input": "Hi", **fields}


async def test_an_answer_has_the_shape_of_openai(client, stage):
    response = await client.post(URL, json=embedding(request_id="mine", user="u", unknown=1))
    assert await response.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, pytest.approx(-0.1), float(ord("i"))]},
        ],
        "model": "fake/model",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert response.status == 200
    assert stage.engine.encode_calls == [([1, 72, 105], "mine", "last", True, 0)]


@pytest.mark.parametrize(
    ("given", "token_ids"),
    [
        ("ab", [[1, 97, 98]]),
        (["a", "b"], [[1, 97], [1, 98]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
async def test_every_form_of_input_is_taken(client, stage, given, token_ids):
    response = await client.post(URL, json=embedding(input=given))
    body = await response.json()
    assert response.status == 200, body
    assert [call[0] for call in stage.engine.encode_calls] == token_ids
    assert [entry["index"] for entry in body["data"]] == list(range(len(token_ids)))
    assert [entry["embedding"][2] for entry in body["data"]] == [ids[-1] for ids in token_ids]
    assert body["usage"]["prompt_tokens"] == sum(map(len, token_ids))


async def test_base64_is_float32_in_little_endian_order(client):
    body = await (await client.post(URL, json=embedding(encoding_format="base64"))).json()
    assert base64.b64decode(body["data"][0]["embedding"]) == struct.pack("<3f", 0.5, -0.1, ord("i"))


async def test_the_options_reach_the_engine(client, stage):
    fields = {"pooling": "mean", "normalize": False, "priority": 5, "add_special_tokens": False, "dimensions": 3}
    response = await client.post(URL, json=embedding(input=["a", "b"], request_id="r", **fields))
    assert response.status == 200
    assert stage.engine.encode_calls == [([97], "r-0", "mean", False, 5), ([98], "r-1", "mean", False, 5)]


async def test_a_large_request_is_embedded_in_order_and_a_few_at_a_time(client, stage):
    stage.engine.pause_s = 0.001
    prompts = [[i % 1000 + 3] for i in range(2048)]
    body = await (await client.post(URL, json=embedding(input=prompts))).json()
    assert [entry["embedding"][2] for entry in body["data"]] == [ids[0] for ids in prompts]
    assert [entry["index"] for entry in body["data"]] == list(range(2048))
    assert 1 < stage.engine.max_open <= MAX_AT_ONCE


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": 5}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": [[1], ["a"]]}, "input[1][0]"),
        ({"input": [-1]}, "input"),
        ({"input": [10**9]}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"encoding_format": 5}, "encoding_format"),
        ({"dimensions": 2}, "dimensions"),
        ({"dimensions": "3"}, "dimensions"),
        ({"pooling": "max"}, "pooling"),
        ({"normalize": 1}, "normalize"),
        ({"priority": 10**12}, "priority"),
        ({"request_id": "two words"}, "request_id"),
    ],
)
async def test_what_is_wrong_is_refused_by_the_name_of_its_field(client, stage, fields, param):
    response = await client.post(URL, json=embedding(**fields))
    error = (await response.json())["error"]
    assert response.status == 400
    assert (error["code"], error["param"]) == ("invalid_request_error", param)
    assert not stage.engine.encode_calls


async def test_a_prompt_may_fill_the_context_and_not_more(client, stage):
    assert (await client.post(URL, json=embedding(input=[65] * 256))).status == 200
    response = await client.post(URL, json=embedding(input=[[65], [65] * 257]))
    error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"]) == (400, "context_length_exceeded", "input")
    assert len(stage.engine.encode_calls) == 1


async def test_an_answer_has_a_limit_in_numbers(client, stage):
    stage.engine.facts = msgspec.structs.replace(stage.engine.facts, embedding_size=1024**2)
    response = await client.post(URL, json=embedding(input=["a"] * 5))
    assert response.status == 400
    assert "at most 4 prompts" in (await response.json())["error"]["message"]


async def test_a_model_that_gives_no_embeddings_says_so(client, stage):
    stage.engine.facts = msgspec.structs.replace(stage.engine.facts, embedding_size=0)
    response = await client.post(URL, json=embedding())
    error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"]) == (400, "embeddings_not_supported", "model")


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (QueueFullError("full"), 429, "QUEUE_FULL"),
        (ContextLengthError("the KV cache holds less"), 400, "context_length_exceeded"),
    ],
)
async def test_what_the_engine_refuses_is_told(client, stage, refusal, status, code):
    stage.engine.refusal = refusal
    response = await client.post(URL, json=embedding(input=["a", "b"]))
    assert (response.status, (await response.json())["error"]["code"]) == (status, code)


async def test_the_death_of_the_engine_ends_the_others_too(client, stage):
    stage.engine.die_after = 3
    stage.engine.pause_s = 60
    response = await client.post(URL, json=embedding(input=["a", "b", "c"]))
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (503, "ENGINE_DEAD")
    assert "killed by a test" in error["message"]
    assert response.headers["Retry-After"]
    assert stage.engine.num_open == 0


async def test_a_stopping_worker_ends_what_runs_and_refuses_what_is_new(client, stage):
    stage.engine.gate.clear()
    running = asyncio.create_task(client.post(URL, json=embedding(input=["a", "b"])))
    await wait_until(lambda: stage.engine.num_open == 2)
    assert stage.app[CONTEXT].admission.end_running() == 1
    for response in (await running, await client.post(URL, json=embedding())):
        assert (response.status, (await response.json())["error"]["code"]) == (503, "SHUTTING_DOWN")
    assert stage.engine.num_open == 0


async def test_embeddings_are_counted(client, stage):
    await client.post(URL, json=embedding(input=["a", "bc"]))
    registry = stage.app[CONTEXT].generator.metrics.registry
    labels = {"model": "fake/model"}
    assert registry.get_sample_value("aphrodited_embeddings_total", labels) == 2
    assert registry.get_sample_value("aphrodited_prompt_tokens_total", labels) == 5
