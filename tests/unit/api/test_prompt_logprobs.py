import pytest

from tests.support.sse import events

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


async def answer(client, path=COMPLETIONS, **fields):
    prompt = {"messages": [{"role": "user", "content": "a"}]} if path == CHAT else {"prompt": "Hi"}
    response = await client.post(path, json={**prompt, **fields})
    body = await response.json()
    assert response.status == 200, body
    return body


async def test_an_echoed_prompt_has_its_logprobs_before_the_answers(client):
    choice = (await answer(client, echo=True, logprobs=1, max_tokens=2))["choices"][0]
    assert choice["text"] == "HiPa"
    assert choice["logprobs"] == {
        "tokens": ["\x01", "H", "i", "P", "a"],
        "token_logprobs": [None, -0.5, -0.5, -0.5, -0.5],
        "top_logprobs": [None, {"H": -0.5}, {"i": -0.5}, {"P": -0.5}, {"a": -0.5}],
        "text_offset": [0, 0, 1, 2, 3],
    }
    assert "prompt_logprobs" not in choice


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_echoes_the_prompt_with_its_logprobs_once_for_each_choice(client, n):
    fields = {"prompt": ["Hi", "A"], "echo": True, "logprobs": 0, "max_tokens": 2, "stream": True, "n": n}
    response = await client.post(COMPLETIONS, json=fields)
    texts, tokens = {}, {}
    for chunk in events(await response.text())[:-1]:
        choice = chunk["choices"][0]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        tokens.setdefault(choice["index"], []).extend((choice["logprobs"] or {"tokens": []})["tokens"])
    assert texts == {i: "HiPa" if i < n else "APa" for i in range(2 * n)}
    assert tokens == {i: ["\x01", *texts[i]] for i in range(2 * n)}


async def test_echo_without_logprobs_asks_for_none(client, stage):
    choice = (await answer(client, echo=True, max_tokens=2))["choices"][0]
    assert (choice["text"], choice["logprobs"]) == ("HiPa", None)
    assert stage.engine.calls[0][1].prompt_logprobs is None


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_prompt_logprobs_are_told_for_each_choice(client, path):
    choices = (await answer(client, path, prompt_logprobs=2, n=2))["choices"]
    assert len(choices) == 2
    for choice in choices:
        first, second, *_ = choice["prompt_logprobs"]
        assert first is None
        assert next(iter(second.values()))["logprob"] == -0.5
        assert all(set(entry) == {"logprob", "rank", "decoded_token"} for entry in second.values())
        assert 2 <= len(second) <= 3


async def test_the_wider_of_two_wishes_is_asked_for_and_each_gets_its_own(client, stage):
    choice = (await answer(client, echo=True, logprobs=1, prompt_logprobs=4))["choices"][0]
    assert stage.engine.calls[0][1].prompt_logprobs == 4
    assert len(choice["prompt_logprobs"][1]) >= 4
    assert len(choice["logprobs"]["top_logprobs"][1]) <= 2
