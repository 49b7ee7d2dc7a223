"""What a request says of sampling, as the engine is told it."""

import json

import pytest

from aphrodited.sampling_params import Grammar, GrammarKind

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = {"role": "user", "content": "a"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture
def params_of(client, stage):
    async def params_of(path=CHAT, **fields):
        prompt = {"messages": [USER]} if path == CHAT else {"prompt": "Hello"}
        response = await client.post(path, json={**prompt, **fields})
        assert response.status == 200, await response.json()
        return stage.engine.calls[-1][1]

    return params_of


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_penalties_biases_and_restrictions_reach_the_engine(params_of, path):
    params = await params_of(
        path,
        presence_penalty=0.5,
        frequency_penalty=-1,
        repetition_penalty=1.25,
        logit_bias={"65": 5, "66": -100},
        allowed_token_ids=[65, 66],
    )
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.5, -1.0, 1.25)
    assert params.logit_bias == {65: 5.0, 66: -100.0}
    assert params.allowed_token_ids == (65, 66)


async def test_what_changes_nothing_is_left_out(params_of):
    params = await params_of(
        presence_penalty=0, repetition_penalty=1, logit_bias={}, allowed_token_ids=[], bad_words=[],
        response_format={"type": "text"}, structured_outputs={}, prompt_logprobs=None,
    )  # fmt: skip
    assert not params.has_penalties
    assert (params.logit_bias, params.allowed_token_ids, params.grammar) == (None, None, None)
    assert params.bad_words_token_ids == ()
    assert params.prompt_logprobs is None


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_bad_words_become_tokens_with_and_without_a_space(params_of, path):
    params = await params_of(path, bad_words=["ab", " c", "ab"])
    assert params.bad_words_token_ids == ((97, 98), (32, 97, 98), (32, 99))


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON, {"type": "object"}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, GrammarKind.JSON, {"type": "object"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
            GrammarKind.JSON,
            SCHEMA,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, GrammarKind.JSON, SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, GrammarKind.JSON, SCHEMA),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON, {"type": "object"}),
        ({"structured_outputs": {"choice": ["a", "é"]}}, GrammarKind.CHOICE, ["a", "é"]),
    ],
)
async def test_formats_become_grammars(params_of, fields, kind, source):
    grammar = (await params_of(**fields)).grammar
    assert (grammar.kind, json.loads(grammar.source), grammar.param) == (kind, source, next(iter(fields)))


async def test_texts_of_grammars_are_handed_on_as_they_are(params_of):
    params = await params_of(COMPLETIONS, structured_outputs={"regex": "[a-z]+"})
    assert params.grammar == Grammar(GrammarKind.REGEX, "[a-z]+", "structured_outputs")
    params = await params_of(structured_outputs={"grammar": "start: /a/"})
    assert params.grammar == Grammar(GrammarKind.GRAMMAR, "start: /a/", "structured_outputs")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_priority_reaches_the_engine(params_of, stage, path):
    await params_of(path, priority=-3)
    assert stage.engine.calls[-1][3] == -3
