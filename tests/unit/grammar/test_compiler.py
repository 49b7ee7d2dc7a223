import json

import pytest

from aphrodited.errors import RequestError
from aphrodited.grammar.compiler import compile_grammar
from aphrodited.grammar.refusal import MAX_REASON_CHARS
from aphrodited.sampling_params import Grammar, GrammarKind

SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


@pytest.fixture
def accepts(vocabulary, tokenizer):
    def accepts(kind, source, text):
        matcher = compile_grammar(Grammar(kind, source), vocabulary)
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        return matcher.validate_tokens(token_ids) == len(token_ids) and (
            not token_ids or matcher.consume_tokens(token_ids)
        ) and matcher.is_accepting()  # fmt: skip

    return accepts


@pytest.mark.parametrize("text", ['{"a":1}', '{"a": -12}', '{ "a" : 0 }', '{\n    "a": 1\n}', '{\n\t"a": 7\n}'])
def test_json_may_be_written_with_ordinary_blanks(accepts, text):
    assert accepts(GrammarKind.JSON, SCHEMA, text)


@pytest.mark.parametrize("text", ['{"a":1', '{"a":"1"}', "{}", '{  "a":1}', '{\n\n"a":1}', " {}", "[1]"])
def test_json_of_another_shape_or_with_blanks_without_end_is_not_accepted(accepts, text):
    assert not accepts(GrammarKind.JSON, SCHEMA, text)


def test_a_schema_may_set_its_own_blanks(accepts):
    schema = json.dumps({"type": "array", "x-guidance": {"whitespace_pattern": "_*"}})
    assert accepts(GrammarKind.JSON, schema, "[1,__2]")
    assert not accepts(GrammarKind.JSON, schema, "[1, 2]")


@pytest.mark.parametrize("text", ["a", "", '"', "\\", "\n", "\x7f\x00", "a|b", "é🙂", "/"])
def test_a_choice_takes_any_text_as_it_is(accepts, text):
    source = json.dumps([text, "something else"])
    assert accepts(GrammarKind.CHOICE, source, text)
    assert not accepts(GrammarKind.CHOICE, source, text + "x")


def test_lark_and_gbnf_are_grammars(accepts):
    assert accepts(GrammarKind.GRAMMAR, 'start: "a" start | "b"', "aab")
    assert accepts(GrammarKind.GRAMMAR, 'root ::= "a" root | "b"', "aab")


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.JSON, "{"),
        (GrammarKind.JSON, "[]"),
        (GrammarKind.JSON, '{"type": "thing"}'),
        (GrammarKind.JSON, '{"$ref": "https://example.org/schema"}'),
        (GrammarKind.JSON, '{"type": "string", "pattern": "("}'),
        (GrammarKind.REGEX, "["),
        (GrammarKind.CHOICE, "{}"),
        (GrammarKind.CHOICE, "[]"),
        (GrammarKind.GRAMMAR, "start: missing"),
        (GrammarKind.GRAMMAR, "::="),
        (GrammarKind.GRAMMAR, "root ::= ("),
    ],
)
def test_what_is_wrong_is_said_with_the_field(vocabulary, kind, source):
    with pytest.raises(RequestError, match="cannot be used") as caught:
        compile_grammar(Grammar(kind, source, "response_format"), vocabulary)
    assert caught.value.param == "response_format"
    assert caught.value.http_status == 400


def test_a_long_reason_is_cut(vocabulary):
    with pytest.raises(RequestError) as caught:
        compile_grammar(Grammar(GrammarKind.REGEX, "(" * 5000), vocabulary)
    assert len(str(caught.value)) < MAX_REASON_CHARS + 100
