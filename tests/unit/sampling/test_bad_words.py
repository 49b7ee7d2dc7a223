from array import array

from aphrodited.sampling.bad_words import BadWords


def completed(words, prompt, output):
    return BadWords(words).completed_by(array("q", [*prompt, *output]), len(output))


def test_the_last_token_of_a_begun_word_is_named():
    assert completed([(1, 2, 3), (2, 4), (1, 5)], [], [1, 2]) == {3, 4}


def test_words_of_one_token_are_always_bad():
    assert BadWords([(9,), (1, 2), (8,)]).always == {8, 9}


def test_a_word_does_not_begin_in_the_prompt():
    assert completed([(1, 2, 3)], [1], [2]) == frozenset()
    assert completed([(1, 2, 3)], [1, 2], []) == frozenset()
