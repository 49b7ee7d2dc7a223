import pytest

from aphrodited.sampling.bitmask import full_mask, mask_of, unpacked, without


def members(mask, vocab_size):
    return unpacked([mask], vocab_size)[0].nonzero()[0].tolist()


@pytest.mark.parametrize("vocab_size", [1, 8, 9, 320])
def test_a_mask_holds_what_it_was_made_of(vocab_size):
    assert members(mask_of([0, vocab_size - 1], vocab_size), vocab_size) == sorted({0, vocab_size - 1})
    assert members(full_mask(vocab_size), vocab_size) == list(range(vocab_size))


def test_taking_tokens_out_leaves_the_original_alone():
    mask = mask_of([1, 2, 3, 9], 16)
    assert members(without(mask, {2, 9, 5}), 16) == [1, 3]
    assert members(mask, 16) == [1, 2, 3, 9]
    assert members(without(mask, ()), 16) == [1, 2, 3, 9]
