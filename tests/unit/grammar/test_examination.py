"""With the examiner's real process, since killing it is the point."""

import os

import pytest

from aphrodited.errors import RequestError
from aphrodited.grammar.examination import Examination
from aphrodited.sampling_params import Grammar, GrammarKind
from tests.support.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE

GOOD = Grammar(GrammarKind.REGEX, "a")
ENDLESS = Grammar(GrammarKind.GRAMMAR, "start: A\nA: ~/(.*a.{14}b.*)/ & /[ab]{2000,}/\n")


@pytest.fixture
def examination(model_path):
    examination = Examination(model_path, VOCAB_SIZE, [EOS_TOKEN_ID], limit_s=1.0)
    yield examination
    examination.close()


def test_the_same_process_examines_one_after_the_other(examination):
    examination.examine(GOOD)
    process = examination._process
    with pytest.raises(RequestError, match="cannot be used"):
        examination.examine(Grammar(GrammarKind.REGEX, "("))
    examination.examine(GOOD)
    assert examination._process is process


def test_a_grammar_that_takes_too_long_has_its_process_killed_and_the_next_gets_another(examination):
    examination.examine(GOOD)
    process = examination._process
    with pytest.raises(RequestError, match="longer than 1 s") as caught:
        examination.examine(ENDLESS)
    assert caught.value.param == "structured_outputs"
    assert process.returncode is not None
    examination.examine(GOOD)


def test_a_grammar_that_ends_its_process_is_refused(examination):
    examination.examine(GOOD)
    os.kill(examination._process.pid, 9)
    with pytest.raises(RequestError, match="memory"):
        examination.examine(GOOD)
    examination.examine(GOOD)


def test_a_process_that_does_not_start_is_the_engines_fault(tmp_path):
    examination = Examination(tmp_path, VOCAB_SIZE, [EOS_TOKEN_ID], limit_s=1.0)
    with pytest.raises(RequestError) as caught:
        examination.examine(GOOD)
    assert caught.value.code == "grammar_unavailable"
    examination.close()


def test_closing_ends_the_process_and_nothing_starts_it_again(examination):
    examination.examine(GOOD)
    process = examination._process
    examination.close()
    assert process.returncode is not None
    with pytest.raises(RequestError, match="shutting down"):
        examination.examine(GOOD)


def test_the_process_ends_with_its_standard_input(examination):
    examination.examine(GOOD)
    process = examination._process
    process.stdin.close()
    assert process.wait(20) == 0
