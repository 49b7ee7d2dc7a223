import pytest

from aphrodited.errors import ContextLengthError, QueueFullError
from aphrodited.outputs import FinishReason
from tests.support.sse import events

URL = "/v1/chat/completions"


def chat(**fields):
    return {"model": "fake/model", "messages": [{"role": "user", "content": "Capital of France?"}], **fields}


async def test_an_answer_has_text_usage_and_the_shape_of_openai(client, stage):
    response = await client.post(URL, json=chat(request_id="mine"))
    body = await response.json()
    assert response.status == 200
    assert response.headers["x-request-id"]
    created = body.pop("created")
    assert isinstance(created, int)
    assert body == {
        "id": "chatcmpl-mine",
        "object": "chat.completion",
        "model": "fake/model",
        "system_fingerprint": "fp_f00df00df00df00d",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 35,
            "completion_tokens": 6,
            "total_tokens": 41,
            "prompt_tokens_details": {"cached_tokens": 16},
        },
    }
    prompt, params, label, priority = stage.engine.calls[0]
    assert "".join(map(chr, prompt)) == "<user>Capital of France?<assistant>"
    assert (params.max_tokens, params.temperature, label, priority) == (None, 1.0, "mine", 0)


async def test_a_stream_opens_with_the_role_closes_with_a_reason_and_ends_with_done(client):
    response = await client.post(
        URL, json=chat(stream=True, n=2, max_tokens=2, stream_options={"include_usage": True})
    )
    assert response.headers["Content-Type"].startswith("text/event-stream")
    *chunks, usage, done = events(await response.text())
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    assert usage["usage"]["prompt_tokens"] == 35
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in [*chunks, usage]}) == 1
    assert all(chunk["usage"] is None for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices[:2]] == [{"role": "assistant", "content": ""}] * 2
    assert [choice["index"] for choice in choices[:2]] == [0, 1]
    for index in (0, 1):
        mine = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == "Pa"
        assert mine[-1]["delta"] == {}
        assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1]["finish_reason"] == "length"


async def test_without_include_usage_no_chunk_speaks_of_usage(client):
    response = await client.post(URL, json=chat(stream=True))
    assert '"usage"' not in await response.text()


async def test_logprobs_come_with_their_text(client):
    whole = await (await client.post(URL, json=chat(logprobs=True, top_logprobs=2))).json()
    content = whole["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == list("Paris.")
    assert content[0]["bytes"] == [80]
    assert [top["token"] for top in content[0]["top_logprobs"]] == ["P", "A"]

    streamed = events(await (await client.post(URL, json=chat(logprobs=True, stream=True))).text())
    entries = [
        entry
        for chunk in streamed[:-1]
        for entry in (chunk["choices"][0].get("logprobs") or {"content": []})["content"]
    ]
    assert [entry["token"] for entry in entries] == list("Paris.")


async def test_each_choice_has_its_own_seed_and_the_first_one_the_callers(client, stage):
    await client.post(URL, json=chat(n=3, seed=7))
    first = [params.seed for _, params, _, _ in stage.engine.calls]
    await client.post(URL, json=chat(n=3, seed=7))
    assert first[0] == 7
    assert len(set(first)) == 3
    assert [params.seed for _, params, _, _ in stage.engine.calls[3:]] == first


async def test_text_parts_are_joined_and_tool_messages_accepted(client, stage):
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]  # fmt: skip
    response = await client.post(URL, json=chat(messages=messages))
    assert response.status == 200
    assert "".join(map(chr, stage.engine.calls[0][0])).startswith("<developer>Be brief.<assistant><tool>2")


async def test_continuing_a_message_opens_no_new_one(client, stage):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    await client.post(URL, json=chat(messages=messages, continue_final_message=True))
    assert "".join(map(chr, stage.engine.calls[0][0])) == "<user>a<assistant>b"


async def test_neutral_values_of_unsupported_parameters_and_nulls_are_accepted(client):
    neutral = {
        "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "logit_bias": {}, "bad_words": [],
        "allowed_token_ids": None, "response_format": {"type": "text"}, "tools": None, "tool_choice": "auto",
        "stop": None, "seed": None, "user": "me", "metadata": {"a": "b"}, "store": False, "some_future_field": [1],
        "max_tokens": None, "temperature": None,
    }  # fmt: skip
    response = await client.post(URL, json=chat(**neutral))
    assert response.status == 200, await response.text()


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ContextLengthError("too long"), 400, "context_length_exceeded"),
        (QueueFullError("full", retry_after_s=2.5), 429, "QUEUE_FULL"),
    ],
)
async def test_what_the_engine_refuses_is_a_plain_error_for_streams_too(client, stage, failure, status, code):
    stage.engine.refusal = failure
    for stream in (False, True):
        response = await client.post(URL, json=chat(stream=stream))
        assert response.status == status
        assert (await response.json())["error"]["code"] == code
    if status == 429:
        assert response.headers["Retry-After"] == "3"


async def test_an_engine_that_dies_before_the_first_token_is_a_plain_503(client, stage):
    stage.engine.die_after = 0
    for stream in (False, True):
        response = await client.post(URL, json=chat(stream=stream))
        error = (await response.json())["error"]
        assert response.status == 503
        assert error["code"] == "ENGINE_DEAD"
        assert error["type"] == "service_unavailable_error"
        assert "killed by a test" in error["message"]
        assert response.headers["Retry-After"] == "1"
        assert response.headers["x-should-retry"] == "true"


async def test_an_engine_that_dies_in_a_stream_is_an_error_event_then_done(client, stage):
    stage.engine.die_after = 3
    response = await client.post(URL, json=chat(stream=True))
    assert response.status == 200
    *chunks, failure, done = events(await response.text())
    assert done == "[DONE]"
    assert failure["error"]["code"] == "ENGINE_DEAD"
    assert "killed by a test" in failure["error"]["message"]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_bug_in_the_client_is_a_500_without_its_text(client, stage, stream):
    stage.engine.die_after = 0
    stage.engine.failure = RuntimeError("secret /path")
    response = await client.post(URL, json=chat(stream=stream))
    assert response.status == 500
    assert "secret" not in await response.text()


async def test_an_abort_is_never_told_as_an_end(client, stage):
    stage.engine.finish_reason = FinishReason.ABORT
    response = await client.post(URL, json=chat())
    assert response.status == 503
    assert (await response.json())["error"]["code"] == "REQUEST_ABORTED"
