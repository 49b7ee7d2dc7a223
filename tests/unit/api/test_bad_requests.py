"""Every way to ask wrongly is a 4xx with the error object, the field's name, and no engine involved."""

import pytest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "user", "content": 3}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2**63}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 5}, "n"),
        ({"n": "1"}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"seed": -1}, "seed"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": [5]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"stop_token_ids": [5] * 129}, "stop_token_ids"),
        ({"min_tokens": 5, "max_tokens": 2}, "min_tokens"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"priority": 10**12}, "priority"),
        ({"request_id": "two words"}, "request_id"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias[...]"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": {"5" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": ["x"] * 513}, "bad_words"),
        ({"bad_words": "x"}, "bad_words"),
        ({"allowed_token_ids": [-5]}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"refuse": True}}, "messages"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ],
)
async def test_a_wrong_chat_is_refused_by_the_name_of_its_field(client, stage, fields, param):
    response = await client.post(CHAT, json={"model": "fake/model", "messages": [USER], **fields})
    await check(response, 400, "invalid_request_error", param)
    assert not stage.engine.calls


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [[1], ["a"]]}, "prompt[1][0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [1.0]}, "prompt[0]"),
        ({"prompt": [None]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"min_tokens": 17}, "min_tokens"),
    ],
)
async def test_a_wrong_completion_is_refused_by_the_name_of_its_field(client, stage, fields, param):
    response = await client.post(COMPLETIONS, json={"model": "fake/model", "prompt": "a", **fields})
    await check(response, 400, "invalid_request_error", param)
    assert not stage.engine.calls


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields", [{"prompt": [65] * 256}, {"prompt": "a" * 300}, {"prompt": "a", "max_tokens": 256}]
)
async def test_what_does_not_fit_the_model_has_its_own_code(client, fields, stream):
    response = await client.post(COMPLETIONS, json={"stream": stream, **fields})
    await check(response, 400, "context_length_exceeded", "prompt")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b'"text"',
        b"{",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": -Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"unknown": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
async def test_a_body_that_is_not_the_json_asked_for_is_a_400(client, stage, body):
    response = await client.post(COMPLETIONS, data=body)
    await check(response, 400, "invalid_request_error")
    assert not stage.engine.calls


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/embeddings", 405, "method_not_allowed"),
        ("POST", "/v1/responses", 404, "not_found"),
        ("POST", "/v1/messages", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/nobody", 404, "model_not_found"),
        ("GET", "/readyz?model=nobody", 404, "model_not_found"),
    ],
)
async def test_wrong_routes_are_answered_with_the_error_object(client, method, path, status, code):
    response = await client.request(method, path)
    await check(response, status, code)


async def test_an_unknown_model_is_a_404_that_names_those_there_are(client):
    response = await client.post(CHAT, json={"model": "gpt-4o", "messages": [USER]})
    error = await check(response, 404, "model_not_found", "model")
    assert "fake/model" in error["message"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_is_too_large_is_a_413(client, chunked):
    async def pieces():
        for _ in range(20):
            yield b" " * 4096

    response = await client.post(CHAT, data=pieces() if chunked else b" " * 81920)
    await check(response, 413, "request_too_large")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, None),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
async def test_a_wrong_tokenisation_is_refused(client, path, fields, param):
    await check(await client.post(path, json=fields), 400, "invalid_request_error", param)


async def check(response, status, code, param=None):
    body = await response.json()
    assert response.status == status, body
    assert list(body) == ["error"]
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code, error
    assert param is None or error["param"] == param, error
    assert error["message"]
    assert response.headers["x-request-id"]
    assert response.headers["Content-Type"].startswith("application/json")
    return error
