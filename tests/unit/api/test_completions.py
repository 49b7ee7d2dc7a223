import pytest

from tests.support.sse import events

URL = "/v1/completions"


def completion(**fields):
    return {"model": "fake/model", "prompt": "Hello", **fields}


async def test_an_answer_has_text_usage_and_the_shape_of_openai(client, stage):
    response = await client.post(URL, json=completion(request_id="mine"))
    body = await response.json()
    body.pop("created")
    assert body == {
        "id": "cmpl-mine",
        "object": "text_completion",
        "model": "fake/model",
        "system_fingerprint": "fp_f00df00df00df00d",
        "choices": [
            {"index": 0, "text": "Paris.", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
        ],
        "usage": {
            "prompt_tokens": 6,
            "completion_tokens": 6,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 16},
        },
    }
    assert stage.engine.calls[0][1].max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("ab", [[1, 97, 98]]),
        (["a", "b"], [[1, 97], [1, 98]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
    ],
)
async def test_every_form_of_prompt_is_taken(client, stage, prompt, token_ids):
    response = await client.post(URL, json=completion(prompt=prompt, n=2))
    body = await response.json()
    assert response.status == 200, body
    assert [call[0] for call in stage.engine.calls] == [ids for ids in token_ids for _ in range(2)]
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(token_ids)))
    assert body["usage"]["prompt_tokens"] == sum(map(len, token_ids))


async def test_streams_of_several_prompts_keep_their_indices(client):
    response = await client.post(URL, json=completion(prompt=["a", "b"], stream=True, echo=True, max_tokens=2))
    *chunks, done = events(await response.text())
    assert done == "[DONE]"
    texts, reasons = {}, {}
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    assert texts == {0: "aPa", 1: "bPa"}
    assert all(found[-1] == "length" and set(found[:-1]) == {None} for found in reasons.values())


async def test_echo_of_token_ids_is_their_text(client):
    body = await (await client.post(URL, json=completion(prompt=[72, 105], echo=True))).json()
    assert body["choices"][0]["text"] == "HiParis."


async def test_logprobs_have_the_four_parallel_lists(client):
    body = await (await client.post(URL, json=completion(logprobs=1, max_tokens=3))).json()
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["P", "a", "r"],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"P": -0.5}, {"a": -0.5}, {"r": -0.5}],
        "text_offset": [0, 1, 2],
    }


async def test_text_offsets_go_on_through_a_stream(client):
    response = await client.post(URL, json=completion(logprobs=0, stream=True))
    offsets = [
        offset
        for chunk in events(await response.text())[:-1]
        for offset in (chunk["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]
    ]
    assert offsets == [0, 1, 2, 3, 4, 5]


async def test_the_default_of_max_tokens_fits_itself_into_the_model(client, stage):
    response = await client.post(URL, json=completion(prompt=[65] * 250))
    assert response.status == 200
    assert stage.engine.calls[0][1].max_tokens == 6


async def test_without_a_model_the_only_one_answers(client):
    response = await client.post(URL, json={"prompt": "a"})
    assert (await response.json())["model"] == "fake/model"
