import io

import msgspec
import pytest

from aphrodited.grammar.examiner import examine, serve
from aphrodited.grammar.frames import frame, read_frame
from aphrodited.sampling_params import Grammar, GrammarKind


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(GrammarKind.REGEX, "a"),
        Grammar(GrammarKind.REGEX, "()"),
        Grammar(GrammarKind.JSON, "{}"),
        Grammar(GrammarKind.REGEX, "[ab]*"),
    ],
)
def test_a_good_grammar_has_nothing_wrong(vocabulary, grammar):
    assert examine(grammar, vocabulary) == ""


def test_a_grammar_that_fails_at_a_later_token_is_found_out(vocabulary):
    grammar = Grammar(GrammarKind.REGEX, "(([a-z]{1,1000}){1,1000}){1,1000}x")
    assert "cannot be used" in examine(grammar, vocabulary)


def test_it_says_that_it_is_ready_and_answers_each_request_in_turn(vocabulary):
    grammars = [Grammar(GrammarKind.REGEX, "a"), Grammar(GrammarKind.REGEX, "(")]
    answers = io.BytesIO()
    serve(io.BytesIO(b"".join(frame(msgspec.msgpack.encode(g)) for g in grammars)), answers, vocabulary)
    answers.seek(0)
    assert [read_frame(answers) for _ in range(2)] == [b"", b""]
    assert b"cannot be used" in read_frame(answers)
    assert read_frame(answers) is None
