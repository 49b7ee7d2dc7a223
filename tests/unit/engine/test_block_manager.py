import pytest

from aphrodited.engine.block_manager import BlockManager
from aphrodited.engine.sequence import Sequence
from aphrodited.engine.windows import least_held, most_held
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import SamplingParams


@pytest.fixture
def blocks():
    return BlockManager(8, 4)


def sequence(tokens):
    request = GenerateRequest("r", list(tokens), SamplingParams())
    return Sequence(0, request, seed=0, arrival=0, eos_token_ids=(), max_model_len=1000, vocab_size=100)


def slid(blocks, it, num_tokens=None):
    """Compute a sequence chunk by chunk, as a scheduler does; it gives back what it no longer sees."""
    assert blocks.admit(it, num_reserved=0)
    end = len(it) if num_tokens is None else num_tokens
    while it.num_computed_tokens < end:
        before = it.num_computed_tokens
        it.num_computed_tokens += blocks.extend(it, min(4, end - before))
        assert it.num_computed_tokens > before
        blocks.publish(it, before)
        blocks.slide(it)
    return it


def compute(blocks, it, num_tokens=None):
    """Admit and compute a sequence, or a first part of it."""
    assert blocks.admit(it, num_reserved=0)
    before = it.num_computed_tokens
    it.num_computed_tokens = len(it) if num_tokens is None else num_tokens
    blocks.publish(it, before)
    return it


def test_blocks_hold_all_tokens(blocks):
    it = sequence(range(9))
    assert blocks.admit(it, num_reserved=0)
    assert len(it.block_table) == 3
    assert blocks.num_used_blocks == 3


def test_nothing_changes_if_there_are_too_few_blocks(blocks):
    it = sequence(range(32))
    assert not blocks.admit(it, num_reserved=1)
    assert len(it.block_table) == 0
    assert blocks.num_free_blocks == 8
    assert blocks.admit(it, num_reserved=0)


def test_a_full_block_is_followed_by_a_new_one(blocks):
    it = compute(blocks, sequence(range(4)))
    it.token_ids.append(9)
    assert blocks.grow(it)
    assert len(it.block_table) == 2
    it.token_ids.append(9)
    assert blocks.grow(it)
    assert len(it.block_table) == 2


def test_growing_fails_without_a_free_block(blocks):
    it = compute(blocks, sequence(range(32)))
    it.token_ids.append(9)
    assert not blocks.grow(it)


def test_a_common_beginning_is_shared(blocks):
    first = compute(blocks, sequence([*range(8), 50]))
    second = sequence([*range(8), 60])
    assert blocks.admit(second, num_reserved=0)
    assert second.block_table[:2] == first.block_table[:2]
    assert second.num_computed_tokens == 8
    assert blocks.num_used_blocks == 4


def test_equal_tokens_after_another_beginning_are_not_shared(blocks):
    compute(blocks, sequence([0, 1, 2, 3, 7, 7, 7, 7]))
    other = sequence([9, 1, 2, 3, 7, 7, 7, 7, 5])
    assert blocks.admit(other, num_reserved=0)
    assert other.num_computed_tokens == 0


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token(blocks):
    compute(blocks, sequence(range(8)))
    again = sequence(range(8))
    assert blocks.admit(again, num_reserved=0)
    assert again.num_computed_tokens == 4


def test_blocks_that_are_not_fully_computed_are_not_found(blocks):
    compute(blocks, sequence(range(12)), num_tokens=7)
    other = sequence(range(12))
    assert blocks.admit(other, num_reserved=0)
    assert other.num_computed_tokens == 4


def test_released_blocks_are_found_until_they_are_handed_out(blocks):
    blocks.release(compute(blocks, sequence(range(9))))
    assert blocks.num_free_blocks == 8
    again = sequence(range(9))
    assert blocks.admit(again, num_reserved=0)
    assert again.num_computed_tokens == 8
    blocks.release(again)
    blocks.release(compute(blocks, sequence(range(100, 132))))
    late = sequence(range(9))
    assert blocks.admit(late, num_reserved=0)
    assert late.num_computed_tokens == 0


def test_blocks_never_published_are_handed_out_before_cached_ones(blocks):
    blocks.release(compute(blocks, sequence(range(16))))  # four published
    blocks.release(compute(blocks, sequence(range(50, 65)), num_tokens=0))  # four of no use
    compute(blocks, sequence(range(70, 85)))
    again = sequence(range(16))
    assert blocks.admit(again, num_reserved=0)
    assert again.num_computed_tokens == 12  # all that could be found, found


def test_the_end_of_a_cached_prompt_goes_before_its_beginning(blocks):
    blocks.release(compute(blocks, sequence(range(32))))
    compute(blocks, sequence(range(100, 116)))  # takes four
    again = sequence(range(16))
    assert blocks.admit(again, num_reserved=0)
    assert again.num_computed_tokens == 12


def test_reviving_a_cached_block_counts_against_the_free_ones(blocks):
    blocks.release(compute(blocks, sequence(range(8))))
    assert not blocks.admit(sequence(range(36)), num_reserved=0)
    assert blocks.admit(sequence(range(32)), num_reserved=0)
    assert blocks.num_free_blocks == 0


def test_a_shared_block_is_free_when_its_last_owner_leaves(blocks):
    first = compute(blocks, sequence(range(5)))
    second = compute(blocks, sequence(range(5)))
    assert blocks.num_used_blocks == 3
    blocks.release(first)
    assert blocks.num_used_blocks == 2
    blocks.release(second)
    assert blocks.num_used_blocks == 0


def test_forgotten_blocks_are_never_found(blocks):
    blocks.release(compute(blocks, sequence(range(9))), forget=True)
    again = sequence(range(9))
    assert blocks.admit(again, num_reserved=0)
    assert again.num_computed_tokens == 0


def test_equal_blocks_computed_twice_are_both_returned(blocks):
    first, second = sequence(range(9)), sequence(range(9))
    assert blocks.admit(first, num_reserved=0)
    assert blocks.admit(second, num_reserved=0)
    for it in (first, second):
        it.num_computed_tokens = 9
        blocks.publish(it, 0)
    blocks.release(first)
    blocks.release(second)
    assert blocks.num_free_blocks == 8
    assert compute(blocks, sequence(range(32))).num_computed_tokens == 32


def test_without_prefix_caching_nothing_is_shared():
    blocks = BlockManager(8, 4, enable_prefix_caching=False)
    compute(blocks, sequence(range(9)))
    other = sequence(range(9))
    assert blocks.admit(other, num_reserved=0)
    assert other.num_computed_tokens == 0


def test_after_forget_all_nothing_is_found(blocks):
    blocks.release(compute(blocks, sequence(range(9))))
    blocks.forget_all()
    again = sequence(range(9))
    assert blocks.admit(again, num_reserved=0)
    assert again.num_computed_tokens == 0


def test_as_many_blocks_are_held_as_a_window_and_a_chunk_can_touch():
    for window in range(1, 12):
        for chunk in range(1, 9):
            touched = [(start + window + chunk - 2) // 4 - start // 4 + 1 for start in range(8)]
            assert most_held(window, chunk, 4) == max(touched)
        assert least_held(window, 4) == most_held(window, 1, 4)


@pytest.fixture
def windowed():
    return BlockManager(6, 4, window=9, max_chunk=4)


def test_what_has_fallen_out_of_the_window_is_given_back(windowed):
    it = slid(windowed, sequence(range(40)))
    assert it.num_gone_blocks == 8  # the next token sees those from 32 on
    assert len(it.block_table) == 10
    assert windowed.num_used_blocks == 2
    windowed.release(it)
    assert windowed.num_free_blocks == 6
    assert it.num_gone_blocks == 0


def test_a_sequence_longer_than_the_pool_takes_no_more_than_a_window_and_a_chunk(windowed):
    it = sequence(range(100))
    assert windowed.admit(it, num_reserved=2)
    assert windowed.num_used_blocks == most_held(9, 4, 4) == 4
    assert windowed.can_hold(10**9)
    assert not windowed.admit(sequence(range(50, 60)), num_reserved=0)


def test_a_pool_that_holds_no_window_holds_what_fits_whole():
    blocks = BlockManager(2, 4, window=9, max_chunk=4)
    assert blocks.can_hold(8)
    assert not blocks.can_hold(9)
    slid(blocks, sequence(range(8)))


def test_blocks_within_the_window_are_enough_to_share_a_beginning(windowed):
    windowed.release(slid(windowed, sequence(range(40))))
    again = sequence([*range(40), 50])
    assert windowed.admit(again, num_reserved=0)
    assert again.num_computed_tokens == 40
    assert again.num_gone_blocks == 8
    assert windowed.num_used_blocks == 3


def test_a_beginning_whose_window_was_overwritten_is_not_shared(windowed):
    first = slid(windowed, sequence(range(40)))
    last_block = first.block_table[-1]
    windowed.release(first)
    windowed._unpublish(last_block)
    again = sequence([*range(40), 50])
    assert windowed.admit(again, num_reserved=0)
    assert again.num_computed_tokens == 36
    assert again.num_gone_blocks == 7


def test_a_block_that_others_see_stays_when_one_has_passed_it(windowed):
    first = slid(windowed, sequence(range(9)))
    second = sequence([*range(8), 60])
    assert windowed.admit(second, num_reserved=0)
    shared = second.block_table[0]
    first.token_ids.extend(range(9, 16))
    while first.num_computed_tokens < 16:
        first.num_computed_tokens += windowed.extend(first, 4)
        windowed.slide(first)
    assert first.num_gone_blocks == 2
    assert shared not in windowed._free
    windowed.release(second)
    assert shared in windowed._free


def test_what_has_fallen_out_of_the_window_is_forgotten_with_the_rest(windowed):
    windowed.release(slid(windowed, sequence(range(20))), forget=True)
    again = sequence(range(20))
    assert windowed.admit(again, num_reserved=0)
    assert again.num_computed_tokens == 0


def test_growing_stops_where_the_most_is_held(windowed):
    it = sequence(range(100))
    assert windowed.admit(it, num_reserved=0)
    assert windowed.extend(it, 50) == 16
    assert windowed.num_free_blocks == 2
