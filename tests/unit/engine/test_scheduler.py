import pytest

from aphrodited.errors import ContextLengthError, QueueFullError
from aphrodited.outputs import FinishReason


def work(batch):
    return [(entry.sequence.key, entry.num_tokens) for entry in batch.entries]


def tokens_of(outputs):
    return {key: [t for output in some for t in output.token_ids] for key, some in outputs.items()}


def test_prompts_are_computed_together_as_far_as_the_budget_goes(rig):
    it = rig(max_num_batched_tokens=10)
    for _ in range(3):
        it.add(range(4), max_tokens=5, ignore_eos=True)
    assert work(it.step()[0]) == [(0, 4), (1, 4), (2, 2)]
    assert work(it.step()[0]) == [(0, 1), (1, 1), (2, 2)]


def test_a_long_prompt_is_cut_and_does_not_hold_up_running_streams(rig):
    it = rig(max_num_batched_tokens=8)
    it.add(range(3), max_tokens=10, ignore_eos=True)
    it.step()
    it.add(range(100, 120), max_tokens=2, ignore_eos=True)
    assert [work(it.step()[0]) for _ in range(4)] == [
        [(0, 1), (1, 7)],
        [(0, 1), (1, 7)],
        [(0, 1), (1, 6)],
        [(0, 1), (1, 1)],
    ]


def test_only_a_prompts_last_piece_samples(rig):
    it = rig(max_num_batched_tokens=4)
    it.add(range(6), max_tokens=1)
    assert it.step()[1] == []
    (output,) = it.step()[1]
    assert output.finish_reason is FinishReason.LENGTH


def test_a_lower_priority_number_runs_first_then_arrival(rig):
    it = rig(max_num_seqs=1)
    for priority in (1, 0, 1, 0):
        it.add([5, 6], priority=priority, max_tokens=1)
    assert [it.step()[1][0].key for _ in range(4)] == [1, 3, 0, 2]


def test_answers_of_another_life_go_on_before_new_ones_the_shortest_first(rig):
    it = rig(max_num_seqs=1)
    for num_tokens, num_replayed in ((2, 0), (8, 3), (5, 1), (8, 7)):
        it.add(range(num_tokens), num_replayed=num_replayed, max_tokens=num_replayed + 1)
    it.add([5, 6], priority=-1, max_tokens=1)
    assert [it.step()[1][0].key for _ in range(5)] == [4, 2, 1, 3, 0]


def test_the_shortest_answers_of_another_life_go_on_while_the_longer_ones_are_computed(rig):
    it = rig(num_blocks=200, max_num_batched_tokens=1024)
    for key, num_tokens in enumerate((100, 30, 60)):
        it.add([50 + key, *range(num_tokens - 1)], num_replayed=2, max_tokens=20)
    it.add([60, 61], max_tokens=20)
    batch, outputs = it.step()
    assert work(batch) == [(1, 30), (2, 60)]
    assert [output.key for output in outputs] == [1, 2]
    assert [work(it.step()[0]) for _ in range(3)] == [
        [(1, 1), (2, 1), (0, 64), (3, 2)],
        [(1, 1), (2, 1), (3, 1), (0, 36)],
        [(1, 1), (2, 1), (0, 1), (3, 1)],
    ]


def test_an_answer_of_another_life_does_not_wait_for_what_is_computed_beside_its_last_tokens(rig):
    it = rig(num_blocks=200, max_num_batched_tokens=1024)
    for key, num_tokens in enumerate((20, 40, 96, 97)):
        it.add([50 + key, *range(num_tokens - 1)], num_replayed=2, max_tokens=20)
    steps = [work(it.step()[0]) for _ in range(4)]
    assert [[(key, n) for key, n in step if n > 1] for step in steps] == [[(0, 20), (1, 40)], [(2, 96)], [(3, 64)], [(3, 33)]]


def test_a_short_answer_that_comes_late_passes_a_long_one_that_is_being_computed(rig):
    it = rig(num_blocks=200, max_num_batched_tokens=1024)
    it.add([50, *range(199)], num_replayed=2, max_tokens=20)
    it.step()
    it.add([51, *range(29)], num_replayed=2, max_tokens=20)
    batch, outputs = it.step()
    assert work(batch) == [(1, 30), (0, 34)]
    assert [output.key for output in outputs] == [1]


def test_no_more_sequences_run_than_allowed(rig):
    it = rig(max_num_seqs=3)
    for _ in range(5):
        it.add([5, 6], max_tokens=4, ignore_eos=True)
    it.step()
    stats = it.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (3, 2)


def test_a_full_queue_refuses(rig):
    it = rig(max_num_seqs=2, max_num_waiting=1)
    for _ in range(3):
        it.add([5])
    with pytest.raises(QueueFullError, match="try again"):
        it.add([5])
    it.run()
    it.add([5])


def test_a_prompt_that_no_cache_can_hold_is_refused_at_the_door(rig):
    it = rig(num_blocks=2, block_size=4)
    with pytest.raises(ContextLengthError, match="9 tokens, the KV cache holds 8"):
        it.add(range(9))
    assert not it.scheduler.has_unfinished_sequences()


def test_a_key_in_use_is_a_bug(rig):
    it = rig()
    it.add([5])
    it.num_added = 0
    with pytest.raises(ValueError, match="key 0"):
        it.add([5])


def test_preemption_takes_the_newest_and_changes_no_token(rig):
    def generate(num_blocks):
        it = rig(num_blocks=num_blocks, max_model_len=40)
        for i in range(4):
            it.add(range(i, i + 5), max_tokens=30, ignore_eos=True)
        return tokens_of(it.run()), it.scheduler.stats()

    roomy, _ = generate(64)
    tight, stats = generate(14)
    assert stats.num_preemptions > 0
    assert tight == roomy


def test_the_oldest_is_never_preempted(rig):
    it = rig(num_blocks=12, max_model_len=40)
    for i in range(4):
        it.add(range(i, i + 5), max_tokens=30, ignore_eos=True)
    gaps = 0
    for _ in range(30):
        gaps += 0 not in [entry.sequence.key for entry in it.step()[0].entries]
    assert gaps == 0


def test_preempted_prompt_tokens_are_counted_once(rig):
    it = rig(num_blocks=14, max_model_len=40)
    for i in range(4):
        it.add(range(i, i + 5), max_tokens=30, ignore_eos=True)
    it.run()
    stats = it.scheduler.stats()
    assert stats.num_preemptions > 0
    assert (stats.num_prompt_tokens, stats.num_generated_tokens, stats.num_finished) == (20, 120, 4)


def test_cached_tokens_are_told_with_the_first_token_only(rig):
    it = rig()
    it.add(range(10), max_tokens=1)
    it.run()
    it.add(range(10), max_tokens=3, ignore_eos=True)
    assert [output.num_cached_tokens for output in it.run()[1]] == [8, 0, 0]
    assert it.scheduler.stats().num_cached_tokens == 8


def test_generated_tokens_are_cached_too(rig):
    it = rig()
    first = it.add(range(10), max_tokens=10, ignore_eos=True)
    it.run()
    second = it.add([*first.token_ids, 5], max_tokens=1)
    it.run()
    assert second.num_cached_tokens == 16  # the last sampled token was never computed


def test_an_aborted_sequence_gives_its_blocks_back_and_says_nothing_more(rig):
    it = rig()
    it.add(range(10), max_tokens=50, ignore_eos=True)
    it.step()
    assert it.scheduler.abort(0)
    assert not it.scheduler.abort(0)
    assert it.blocks.num_used_blocks == 0
    assert it.run() == {}
    assert it.scheduler.stats().num_aborted == 1


def test_a_waiting_sequence_can_be_aborted(rig):
    it = rig(max_num_seqs=1)
    it.add([5], max_tokens=3, ignore_eos=True)
    it.add([6])
    it.step()
    assert it.scheduler.abort(1)
    assert set(it.run()) == {0}


def test_a_sequence_that_fails_takes_nobody_with_it_and_leaves_nothing_in_the_cache(rig):
    it = rig()
    it.add(range(10), max_tokens=3, ignore_eos=True)
    it.add(range(50, 60), max_tokens=3, ignore_eos=True)
    it.memory.fails.add(0)
    outputs = it.run()
    assert [o.finish_reason for o in outputs[0]] == [FinishReason.ERROR]
    assert outputs[0][0].error[0] == "not_finite"
    assert outputs[1][-1].finish_reason is FinishReason.LENGTH
    again = it.add(range(10), max_tokens=1)
    it.run()
    assert again.num_cached_tokens == 0


def test_stop_names_its_token(rig):
    it = rig()
    it.add(range(3), max_tokens=None, stop_token_ids=tuple(range(1, 21)))
    ((output,),) = it.run().values()
    assert output.finish_reason is FinishReason.STOP
    assert output.token_ids == [output.stop_token_id]


def test_a_sequence_may_fill_the_context_and_the_cache_to_the_last_slot(rig):
    it = rig(num_blocks=2, block_size=4)
    it.add(range(3), max_tokens=None, ignore_eos=True)
    assert len(it.run()[0]) == 5


def test_reset_forgets_counters_and_cached_prefixes(rig):
    it = rig()
    it.add(range(10), max_tokens=1)
    it.run()
    it.scheduler.reset()
    assert it.scheduler.stats().num_steps == 0
    again = it.add(range(10), max_tokens=1)
    it.run()
    assert again.num_cached_tokens == 0


def test_behind_a_window_prompts_and_answers_longer_than_the_cache_are_computed(rig):
    it = rig(num_blocks=8, window=9, max_num_batched_tokens=8, max_model_len=300)
    for key in range(3):
        it.add(range(key, key + 60), max_tokens=100, ignore_eos=True)
    most = 0
    while it.scheduler.has_unfinished_sequences():
        it.step()
        most = max(most, it.blocks.num_used_blocks)
    assert most <= 8
    assert it.scheduler.stats().num_generated_tokens == 300


def test_behind_a_window_preemption_and_the_cache_change_no_token(rig):
    def generate(**options):
        it = rig(window=20, max_num_batched_tokens=6, max_model_len=200, **options)
        for key in range(4):
            it.add(range(key % 2, 9 + key), max_tokens=40, ignore_eos=True)
        return tokens_of(it.run()), it.scheduler.stats()

    roomy, _ = generate(enable_prefix_caching=False)
    tight, stats = generate(num_blocks=10)
    assert stats.num_preemptions > 0
    assert tight == roomy


def test_without_room_for_a_window_a_prompt_that_no_cache_can_hold_is_refused(rig):
    it = rig(num_blocks=2, block_size=4, window=6)
    with pytest.raises(ContextLengthError, match="9 tokens, the KV cache holds 8"):
        it.add(range(9))
    rig(num_blocks=3, block_size=4, window=6, max_model_len=100).add(range(90))
