import numpy as np
import pytest

from aphrodited.errors import ModelLoadError
from aphrodited.grammar.compiler import compile_grammar
from aphrodited.grammar.position import MatcherPosition
from aphrodited.grammar.vocabulary import build_vocabulary
from aphrodited.sampling.bitmask import unpacked
from aphrodited.sampling_params import Grammar, GrammarKind
from tests.support.tiny_models import BOS_TOKEN_ID, EOS_TOKEN_ID, VOCAB_SIZE

ANYTHING = Grammar(GrammarKind.REGEX, "(?s).*")


def allowed(vocabulary, grammar):
    matcher = compile_grammar(grammar, vocabulary)
    position = MatcherPosition(grammar, vocabulary, matcher).after([])
    return set(unpacked([position.allowed], vocabulary.size)[0].nonzero()[0].tolist())


def test_every_end_is_allowed_where_an_end_is(model_path):
    vocabulary = build_vocabulary(model_path, VOCAB_SIZE, [EOS_TOKEN_ID, 0])
    assert {EOS_TOKEN_ID, 0} <= allowed(vocabulary, ANYTHING)
    assert not {EOS_TOKEN_ID, 0} & allowed(vocabulary, Grammar(GrammarKind.REGEX, "a+b"))


def test_special_tokens_are_no_text(vocabulary):
    assert BOS_TOKEN_ID not in allowed(vocabulary, ANYTHING)


def test_rows_that_the_tokenizer_lacks_are_never_allowed(model_path):
    vocabulary = build_vocabulary(model_path, VOCAB_SIZE + 13, [EOS_TOKEN_ID])
    assert max(allowed(vocabulary, ANYTHING)) < VOCAB_SIZE


def test_a_model_without_an_end_can_follow_a_grammar(model_path):
    vocabulary = build_vocabulary(model_path, VOCAB_SIZE, [])
    assert max(allowed(vocabulary, ANYTHING)) < VOCAB_SIZE
    grammar = Grammar(GrammarKind.REGEX, "()")
    assert MatcherPosition(grammar, vocabulary, compile_grammar(grammar, vocabulary)).after([]).allowed is None


def test_masks_have_a_bit_for_each_token(vocabulary):
    grammar = Grammar(GrammarKind.REGEX, "a")
    position = MatcherPosition(grammar, vocabulary, compile_grammar(grammar, vocabulary)).after([])
    assert position.allowed.dtype == np.uint8
    assert len(position.allowed) == VOCAB_SIZE // 8


def test_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match="tokenizer"):
        build_vocabulary(tmp_path, VOCAB_SIZE, [EOS_TOKEN_ID])
