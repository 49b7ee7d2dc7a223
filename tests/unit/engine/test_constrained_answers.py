"""Grammars through the real engine over a tiny model with random weights, which would never follow them by itself."""

import json
import re
from typing import Annotated, Literal

import msgspec
import pytest
import torch

from aphrodited.config.schema import ModelConfig
from aphrodited.engine.null_backend import create_null_backend
from aphrodited.errors import RequestError
from aphrodited.grammar.constraint import ConstraintState
from aphrodited.grammar.grammars import Grammars
from aphrodited.outputs import FinishReason
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import Grammar, GrammarKind, SamplingParams
from aphrodited.tokenizer.tokenizer import load_tokenizer
from tests.support.engine_runs import answer_all, engine_of, load
from tests.support.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE, write_tiny_llama_dir

NEVER_COMPILES = Grammar(GrammarKind.GRAMMAR, "start: A\nA: ~/(.*a.{14}b.*)/ & /[ab]{2000,}/\n")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_llama_dir(tmp_path_factory.mktemp("model"), max_position_embeddings=1024)


@pytest.fixture(scope="module")
def model(path):
    return load(path)


@pytest.fixture(scope="module")
def engine(model, path):
    """Shared: compiled grammars are kept, and nothing else of a test is."""
    engine = engine_of(model, path=path, max_model_len=1024)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tokenizer(path):
    return load_tokenizer(path)


def request(grammar, seed=0, **options):
    defaults = {"temperature": 1.5, "seed": seed, "max_tokens": 900}
    params = SamplingParams(grammar=grammar, **{**defaults, **options})
    return GenerateRequest(str(seed), [5, 6, 7 + seed % 100], params)


def texts(engine, tokenizer, requests):
    """What was answered, without the token that ended it; every answer ended by itself."""
    answers = answer_all(engine, requests)
    assert {(answer.finish_reason, answer.error) for answer in answers} == {(FinishReason.STOP, None)}
    return [tokenizer.decode(answer.token_ids) for answer in answers]


class Item(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=8)]
    kind: Literal["small", "large"]
    sizes: Annotated[list[Annotated[int, msgspec.Meta(ge=-5, le=500)]], msgspec.Meta(max_length=3)]
    price: Annotated[float, msgspec.Meta(ge=0, le=100)] | None


class Order(msgspec.Struct, forbid_unknown_fields=True):
    items: Annotated[list[Item], msgspec.Meta(min_length=1, max_length=2)]
    paid: bool


def test_answers_under_a_schema_always_parse_and_validate(engine, tokenizer):
    grammar = Grammar(GrammarKind.JSON, json.dumps(msgspec.json.schema(Order)))
    answers = texts(engine, tokenizer, [request(grammar, seed) for seed in range(60)])
    assert all(isinstance(msgspec.json.decode(text, type=Order), Order) for text in answers)
    assert len(set(answers)) > 50


@pytest.mark.parametrize(
    "pattern", ["[a-z]{3}(-[0-9]{2,4})+", "(foo|barbaz)?x{5}", "[^a-z\"]{1,9}\\.", "é{2}|ß+🙂"]
)
def test_answers_under_a_regex_match_it_as_a_whole(engine, tokenizer, pattern):
    grammar = Grammar(GrammarKind.REGEX, pattern)
    answers = texts(engine, tokenizer, [request(grammar, seed) for seed in range(20)])
    assert all(re.fullmatch(pattern, text) for text in answers)


def test_a_choice_is_one_of_its_strings(engine, tokenizer):
    choices = ["the dog", "the lazy dog", 'a "quote" \\ and a\nline', "ü🙂", "\x7f\x01", "a"]
    grammar = Grammar(GrammarKind.CHOICE, json.dumps(choices))
    answers = texts(engine, tokenizer, [request(grammar, seed) for seed in range(40)])
    assert set(answers) <= set(choices)
    assert len(set(answers)) > 2


@pytest.mark.parametrize("source", ['start: "(" start ")" | "x"', 'root ::= "(" root ")" | "x"'], ids=["lark", "gbnf"])
def test_answers_under_a_grammar_belong_to_its_language(engine, tokenizer, source):
    grammar = Grammar(GrammarKind.GRAMMAR, source)
    for text in texts(engine, tokenizer, [request(grammar, seed) for seed in range(20)]):
        depth = text.index("x")
        assert text == "(" * depth + "x" + ")" * depth


def test_an_answer_ends_when_nothing_more_may_come(engine):
    (answer,) = answer_all(engine, [request(Grammar(GrammarKind.REGEX, "abc"))])
    assert answer.finish_reason is FinishReason.STOP
    assert answer.stop_token_id is None
    assert EOS_TOKEN_ID not in answer.token_ids


def test_an_answer_may_go_on_or_end_where_the_grammar_accepts(engine):
    grammar = Grammar(GrammarKind.REGEX, "a+")
    ended = answer_all(engine, [request(grammar, logit_bias={EOS_TOKEN_ID: 100.0})])[0]
    assert ended.stop_token_id == EOS_TOKEN_ID
    assert len(ended.token_ids) == 2
    cut = answer_all(engine, [request(grammar, logit_bias={EOS_TOKEN_ID: -100.0}, max_tokens=20)])[0]
    assert cut.finish_reason is FinishReason.LENGTH


def test_eos_waits_for_min_tokens_and_for_nothing_else_if_nothing_else_is_left(engine):
    bias = {EOS_TOKEN_ID: 100.0}
    longer = request(Grammar(GrammarKind.REGEX, "a+"), min_tokens=7, logit_bias=bias)
    shorter = request(Grammar(GrammarKind.REGEX, "aa?a?"), min_tokens=7, logit_bias=bias)
    first, second = answer_all(engine, [longer, shorter])
    assert len(first.token_ids) == 8
    assert len(second.token_ids) == 3
    assert second.finish_reason is FinishReason.STOP


def test_ignored_eos_never_ends_what_can_go_on(engine):
    grammar = Grammar(GrammarKind.REGEX, "a+")
    options = {"ignore_eos": True, "logit_bias": {EOS_TOKEN_ID: 100.0}, "max_tokens": 25}
    (answer,) = answer_all(engine, [request(grammar, **options)])
    assert answer.finish_reason is FinishReason.LENGTH
    assert EOS_TOKEN_ID not in answer.token_ids


def test_a_grammar_that_takes_no_text_is_answered_with_none(engine):
    (answer,) = answer_all(engine, [request(Grammar(GrammarKind.REGEX, "()"))])
    assert (answer.token_ids, answer.finish_reason) == ([], FinishReason.STOP)


def test_an_answer_that_was_complete_when_its_engine_died_is_ended(engine, tokenizer):
    grammar = Grammar(GrammarKind.REGEX, "abc")
    tokens = tokenizer.encode("abc", add_special_tokens=False)
    it = GenerateRequest("r", [5, *tokens], SamplingParams(grammar=grammar), num_replayed=len(tokens))
    (answer,) = answer_all(engine, [it])
    assert (answer.token_ids, answer.finish_reason) == ([], FinishReason.STOP)


def test_replayed_tokens_that_do_not_fit_are_refused(engine):
    it = request(Grammar(GrammarKind.REGEX, "abc"))
    it = msgspec.structs.replace(it, num_replayed=2)
    (answer,) = answer_all(engine, [it])
    assert (answer.finish_reason, answer.error_param) == (FinishReason.ERROR, "structured_outputs")


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(GrammarKind.JSON, '{"type": "nonsense"}', "response_format"),
        Grammar(GrammarKind.JSON, "not json", "response_format"),
        Grammar(GrammarKind.REGEX, "a(", "response_format"),
        Grammar(GrammarKind.CHOICE, "[]", "response_format"),
        Grammar(GrammarKind.CHOICE, "[1]", "response_format"),
        Grammar(GrammarKind.GRAMMAR, "start: nowhere", "response_format"),
    ],
)
def test_a_bad_grammar_fails_its_request_alone(engine, grammar):
    failed, fine = answer_all(engine, [request(grammar), request(None, max_tokens=5, ignore_eos=True)])
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.error[0] == "invalid_request_error"
    assert failed.error_param == "response_format"
    assert len(fine.token_ids) == 5
    assert engine.stats().num_blocks_used == 0


def test_a_grammar_that_takes_too_long_holds_nobody_up(model, path):
    engine = engine_of(model, path=path)
    engine._grammars = Grammars(path, VOCAB_SIZE, (EOS_TOKEN_ID,), limit_s=0.3)
    engine.add_request(0, request(NEVER_COMPILES))
    engine.add_request(1, request(None, max_tokens=20, ignore_eos=True))
    ended = []
    while engine.has_unfinished_requests():
        ended += [output for output in engine.step() if output.finish_reason]
    assert [output.key for output in ended] == [1, 0]
    assert ended[1].error[0] == "invalid_request_error"
    assert "0.3 s" in ended[1].error[1]
    engine.close()


def test_a_request_that_waits_for_its_grammar_can_be_aborted(model, path):
    engine = engine_of(model, path=path)
    engine.add_request(0, request(NEVER_COMPILES))
    assert engine.step() == []
    assert engine.stats().num_waiting == 1
    assert engine.abort_request(0)
    assert not engine.has_unfinished_requests()
    engine.close()


def test_an_engine_without_a_vocabulary_refuses_grammars():
    engine = create_null_backend(ModelConfig(name="m", path="/none"))
    with pytest.raises(RequestError) as caught:
        engine.add_request(1, request(Grammar(GrammarKind.REGEX, "a")))
    assert (caught.value.code, caught.value.param) == ("grammar_unavailable", "structured_outputs")
    assert not engine.has_unfinished_requests()


def test_a_model_without_a_tokenizer_fails_the_request_alone(model, tmp_path):
    engine = engine_of(model, path=tmp_path)
    failed, fine = answer_all(engine, [request(Grammar(GrammarKind.REGEX, "a")), request(None, max_tokens=3)])
    assert failed.error[0] == "grammar_unavailable"
    assert fine.error is None
    engine.close()


class LateConstraint:
    """Knows each position only when it was asked for the third time."""

    def __init__(self, constraint):
        self._constraint = constraint
        self._num_asked = 0

    def state(self):
        return self._constraint.state()

    def cancel(self):
        self._constraint.cancel()

    def allowed(self, patience_s):
        self._num_asked += 1
        return self._constraint.allowed(10) if self._num_asked % 3 == 0 else None

    def advance(self, token_id):
        self._constraint.advance(token_id)


class LateGrammars:
    def __init__(self, grammars):
        self._grammars = grammars

    def begin(self, grammar, replayed):
        return LateConstraint(self._grammars.begin(grammar, replayed))

    def wait(self, timeout_s):
        self._grammars.wait(timeout_s)

    def close(self):
        self._grammars.close()


def test_a_mask_that_comes_late_delays_its_sequence_alone_and_changes_nothing(engine, model, path):
    grammar = Grammar(GrammarKind.REGEX, "[a-z]{30}")
    requests = [request(grammar, 3, logprobs=1), request(None, 4, max_tokens=20, ignore_eos=True, logprobs=1)]
    in_time = answer_all(engine, requests)
    late = engine_of(model, path=path, max_model_len=1024)
    late._grammars = LateGrammars(late._grammars)
    assert answer_all(late, requests) == in_time
    assert late.stats().num_steps > 2 * len(in_time[0].token_ids)
    late.close()


def test_a_constraint_is_open_until_its_grammar_is_complete(path):
    grammars = Grammars(path, VOCAB_SIZE, (EOS_TOKEN_ID,))
    constraint = grammars.begin(Grammar(GrammarKind.REGEX, "aa"), [])
    assert constraint.state() is ConstraintState.PENDING
    assert constraint.allowed(30) is not None
    token_id = load_tokenizer(path).encode("a", add_special_tokens=False)[0]
    for expected in (ConstraintState.OPEN, ConstraintState.COMPLETE):
        constraint.advance(token_id)
        constraint.allowed(30)
        assert constraint.state() is expected
    grammars.close()
