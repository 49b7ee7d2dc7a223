"""Penalties, biases, restrictions and prompt_logprobs through the real engine over a tiny model.

What a request gets depends neither on its neighbours nor on chunks, preemption, the prefix cache or an earlier life.
"""

import random

import msgspec
import pytest
import torch

from aphrodited.engine.kv_cache_pool import kv_block_bytes
from aphrodited.errors import RequestError
from aphrodited.outputs import FinishReason
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import Grammar, GrammarKind, SamplingParams
from tests.support.engine_runs import answer_all, engine_of, load
from tests.support.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE, write_tiny_llama_dir

BLOCK_SIZE = 4

FEATURES = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.2, "temperature": 0.0},
    "repetition": {"repetition_penalty": 1.8, "temperature": 0.0},
    "all penalties": {"presence_penalty": -0.5, "frequency_penalty": 0.6, "repetition_penalty": 1.1},
    "logit bias": {"logit_bias": {5: 4.0, 6: 4.5, 7: -100.0}},
    "allowed": {"allowed_token_ids": (20, 21, 22, 23, EOS_TOKEN_ID), "min_tokens": 12},
    "bad words": {"bad_words_token_ids": ((30,), (31, 32), (33, 34, 35)), "allowed_token_ids": tuple(range(30, 37))},
    "json": {"grammar": Grammar(GrammarKind.JSON, '{"type":"array","items":{"type":"integer"},"minItems":4}')},
    "regex": {"grammar": Grammar(GrammarKind.REGEX, "([a-z]{3}-){8}"), "repetition_penalty": 1.3},
    "choice": {"grammar": Grammar(GrammarKind.CHOICE, '["the quick brown fox", "the lazy dog", "sun"]')},
    "grammar": {"grammar": Grammar(GrammarKind.GRAMMAR, 'start: "(" start ")" | "x"+'), "ignore_eos": True},
    "prompt logprobs": {"prompt_logprobs": 3},
    "none": {},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_llama_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(path):
    return load(path)


@pytest.fixture(scope="module")
def engine(model, path):
    """Shared: compiled grammars are kept, and nothing else of a test is."""
    engine = engine_of(model, path=path, block_size=BLOCK_SIZE)
    yield engine
    engine.close()


def request(index, feature, *, prompt=None, **options):
    chooser = random.Random(index)
    prompt = prompt or [chooser.randrange(3, VOCAB_SIZE) for _ in range(chooser.randrange(1, 40))]
    defaults = {"temperature": 1.2, "seed": index, "max_tokens": 30, "logprobs": 2}
    return GenerateRequest(str(index), prompt, SamplingParams(**{**defaults, **FEATURES[feature], **options}))


def requests():
    return [request(index, feature) for index, feature in enumerate([*FEATURES, *FEATURES])]


def resumed(request, answer, num_replayed):
    prompt = request.prompt_token_ids + answer.token_ids[:num_replayed]
    return msgspec.structs.replace(request, prompt_token_ids=prompt, num_replayed=num_replayed)


def without_key(answers):
    return [msgspec.structs.replace(answer, key=0, num_cached_tokens=0) for answer in answers]


@pytest.fixture(scope="module")
def undisturbed(engine):
    """Each request alone."""
    return without_key([answer_all(engine, [it])[0] for it in requests()])


def test_features_change_answers(undisturbed):
    plain = undisturbed[list(FEATURES).index("none")]
    assert len(plain.token_ids) > 3
    assert all(answer.finish_reason in (FinishReason.STOP, FinishReason.LENGTH) for answer in undisturbed)


def test_neighbours_change_nothing(engine, undisturbed):
    assert without_key(answer_all(engine, requests())) == undisturbed


def test_chunks_and_preemption_change_nothing(model, path, undisturbed):
    memory = 45 * kv_block_bytes(model.config, BLOCK_SIZE, model.cache_dtype)
    small = engine_of(
        model, path=path, block_size=BLOCK_SIZE, max_num_batched_tokens=24, kv_cache_memory=memory, max_num_waiting=99
    )
    assert without_key(answer_all(small, requests())) == undisturbed
    assert small.stats().num_preemptions > 0
    small.close()


@pytest.mark.parametrize("feature", FEATURES)
def test_a_resumed_answer_equals_an_undisturbed_one(engine, feature):
    for index in range(4):
        it = request(index, feature)
        (whole,) = answer_all(engine, [it])
        cuts = random.Random(index).sample(range(1, max(2, len(whole.token_ids))), k=min(3, len(whole.token_ids) - 1))
        tails = answer_all(engine, [resumed(it, whole, cut) for cut in cuts])
        for cut, tail in zip(cuts, tails, strict=True):
            assert tail.token_ids == whole.token_ids[cut:]
            assert tail.logprobs == whole.logprobs[cut:]
            assert tail.finish_reason == whole.finish_reason
            assert tail.prompt_logprobs == whole.prompt_logprobs


def test_only_allowed_tokens_come(engine):
    for index in range(5):
        (answer,) = answer_all(engine, [request(index, "allowed")])
        assert set(answer.token_ids) <= {20, 21, 22, 23, EOS_TOKEN_ID}
        assert len(answer.token_ids) >= 12


def test_bad_words_never_come(engine):
    for index in range(10):
        (answer,) = answer_all(engine, [request(index, "bad words", max_tokens=60)])
        tokens = answer.token_ids
        assert 30 not in tokens
        assert [31, 32] not in [tokens[i : i + 2] for i in range(len(tokens))]
        assert [33, 34, 35] not in [tokens[i : i + 3] for i in range(len(tokens))]
        assert {31, 33, 34} & set(tokens)


def test_a_large_bias_decides(engine):
    (answer,) = answer_all(engine, [request(0, "none", logit_bias={9: 100.0}, max_tokens=5, top_k=50)])
    assert answer.token_ids == [9] * 5


def test_penalties_leave_logprobs_as_the_model_gave_them(engine):
    plain = answer_all(engine, [request(3, "none", max_tokens=1, logprobs=5)])[0].logprobs[0]
    penalised = answer_all(engine, [request(3, "repetition", max_tokens=1, logprobs=5)])[0].logprobs[0]
    assert penalised.top_logprobs == plain.top_logprobs


def test_a_request_that_comes_to_forbid_every_token_fails_alone(engine):
    barred = request(1, "none", allowed_token_ids=(8,), bad_words_token_ids=((8, 8),))
    failed, fine = answer_all(engine, [barred, request(2, "none")])
    assert failed.finish_reason is FinishReason.ERROR
    assert "forbids every token" in failed.error[1]
    assert fine.error is None


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"top_k": 2**63}, "top_k"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"allowed_token_ids": (8, 9), "bad_words_token_ids": ((8,), (9,))}, "allowed_token_ids"),
        ({"allowed_token_ids": (EOS_TOKEN_ID,), "ignore_eos": False, "min_tokens": 1}, "allowed_token_ids"),
        ({"stop_token_ids": tuple(range(VOCAB_SIZE)), "min_tokens": 1}, "min_tokens"),
        ({"bad_words_token_ids": tuple((i,) for i in range(VOCAB_SIZE))}, "bad_words"),
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias"),
        ({"logit_bias": {5: 101.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": ()}, "allowed_token_ids"),
        ({"allowed_token_ids": (VOCAB_SIZE,)}, "allowed_token_ids"),
        ({"bad_words_token_ids": ((5, VOCAB_SIZE),)}, "bad_words"),
        ({"bad_words_token_ids": ((),)}, "bad_words"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"grammar": Grammar(GrammarKind.REGEX, "", "response_format")}, "response_format"),
        ({"grammar": Grammar("prose", "x")}, "structured_outputs"),
        ({"grammar": Grammar(GrammarKind.REGEX, "a" * 200_000)}, "structured_outputs"),
    ],
)
def test_a_value_out_of_range_is_refused_at_the_door(engine, options, param):
    with pytest.raises(RequestError) as caught:
        engine.add_request(1, request(0, "none", **options))
    assert caught.value.param == param
    assert not engine.has_unfinished_requests()


def test_prompt_logprobs_are_those_that_the_tokens_had_when_they_were_generated(engine):
    it = request(6, "none", logprobs=4, prompt=[70, 71, 72], max_tokens=25)
    (generated,) = answer_all(engine, [it])
    scored = request(6, "none", prompt=[70, 71, 72, *generated.token_ids], prompt_logprobs=4, max_tokens=1)
    (answer,) = answer_all(engine, [scored])
    assert len(answer.prompt_logprobs) == 2 + len(generated.token_ids)
    assert answer.prompt_logprobs[2:] == generated.logprobs


def test_prompt_logprobs_need_the_whole_prompt_computed(engine):
    it = request(9, "prompt logprobs", prompt=list(range(3, 60)))
    answer_all(engine, [request(9, "none", prompt=list(range(3, 60)))])
    first, second = (answer_all(engine, [it])[0] for _ in range(2))
    assert first.num_cached_tokens == second.num_cached_tokens == 0
    assert first.prompt_logprobs == second.prompt_logprobs
    assert [entry.token_id for entry in first.prompt_logprobs] == it.prompt_token_ids[1:]


def test_a_prompt_of_one_token_has_no_logprobs_to_tell(engine):
    (answer,) = answer_all(engine, [request(0, "prompt logprobs", prompt=[5])])
    assert not answer.prompt_logprobs


def test_a_lower_priority_number_is_answered_first(model):
    engine = engine_of(model, max_num_seqs=1, max_num_waiting=9)
    order = []
    for key, priority in enumerate([5, 1, 3, 1]):
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        engine.add_request(key, GenerateRequest(str(key), [5, 6], params, priority=priority))
    while engine.has_unfinished_requests():
        order += [output.key for output in engine.step() if output.finish_reason]
    assert order == [1, 3, 2, 0]
    engine.close()
