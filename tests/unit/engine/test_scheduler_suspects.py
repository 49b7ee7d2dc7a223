"""Sequences that are suspected of ending engines: they have no company for so many tokens, and hold nobody up for longer."""

import random

import pytest

from aphrodited.engine.sequence import SequenceStatus
from aphrodited.outputs import FinishReason
from tests.support.scheduler_rig import Rig


def keys_of(batch):
    return [entry.sequence.key for entry in batch.entries]


def steps(rig, num_steps):
    return [keys_of(rig.step()[0]) for _ in range(num_steps)]


def test_a_suspect_runs_alone_until_so_many_of_its_tokens_are_computed():
    rig = Rig()
    rig.add([5, 6], max_tokens=20, ignore_eos=True)
    rig.step()
    suspect = rig.add([7, 8, 9], alone_until=5, max_tokens=20, ignore_eos=True)
    assert steps(rig, 4) == [[1], [1], [1], [0, 1]]
    assert suspect.num_computed_tokens == 6


def test_suspects_go_one_after_the_other_in_rank_then_all_run_together():
    rig = Rig()
    for length in (4, 3, 2):
        rig.add([5] * length, num_replayed=1, alone_until=length + 1, max_tokens=20, ignore_eos=True)
    rig.add([9], max_tokens=20, ignore_eos=True)
    # Replayed ones rank by length, the shortest first.
    assert steps(rig, 7) == [[2], [2], [1], [1], [0], [0], [2, 1, 0, 3]]


def test_a_long_prompt_is_computed_alone_in_chunks():
    rig = Rig(max_num_batched_tokens=4)
    rig.add([5], max_tokens=20, ignore_eos=True)
    rig.step()
    rig.add([7] * 9, alone_until=9, max_tokens=5, ignore_eos=True)
    assert steps(rig, 4) == [[1], [1], [1], [0, 1]]


def test_one_that_has_no_place_gets_that_of_the_last_in_rank():
    rig = Rig(num_blocks=4, block_size=4, max_num_seqs=2, enable_prefix_caching=False)
    first = rig.add([5] * 7, max_tokens=8, ignore_eos=True)
    last = rig.add([6] * 7, max_tokens=8, ignore_eos=True)
    rig.step()
    suspect = rig.add([7] * 6, alone_until=6, max_tokens=2, ignore_eos=True)
    assert steps(rig, 1) == [[2]]
    assert (first.status, last.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
    outputs = rig.run()
    assert [outputs[key][-1].finish_reason for key in range(3)] == [FinishReason.LENGTH] * 3
    assert suspect.status is SequenceStatus.FINISHED


def test_one_that_is_through_is_not_alone_again_when_it_is_computed_again():
    rig = Rig(num_blocks=5, block_size=4, enable_prefix_caching=False)
    first = rig.add([5] * 7, max_tokens=8, ignore_eos=True)
    suspect = rig.add([6] * 7, priority=1, alone_until=7, max_tokens=8, ignore_eos=True)
    assert steps(rig, 3) == [[1], [1, 0], [0, 1]]
    while suspect.status is not SequenceStatus.WAITING:  # preempted
        rig.step()
    assert suspect.num_computed_tokens == 0
    assert not suspect.runs_alone
    assert first.key in keys_of(rig.step()[0])
    rig.run()


@pytest.mark.parametrize("ending", ["abort", "finish"])
def test_whoever_paused_goes_on_when_the_suspect_ends(ending):
    rig = Rig()
    rig.add([5], max_tokens=20, ignore_eos=True)
    rig.step()
    suspect = rig.add([7, 8], alone_until=50, max_tokens=3, ignore_eos=True)
    assert steps(rig, 2) == [[1], [1]]
    if ending == "abort":
        rig.scheduler.abort(suspect.key)
    else:
        assert steps(rig, 1) == [[1]]
    assert steps(rig, 1) == [[0]]


def test_an_embedding_can_be_suspected_too():
    rig = Rig(max_num_batched_tokens=4)
    rig.add([5], max_tokens=20, ignore_eos=True)
    rig.add_encode([7] * 6, pooling="mean", alone_until=7)
    assert steps(rig, 3) == [[1], [1], [0]]


@pytest.mark.parametrize("seed", range(10))
def test_mixes_with_suspects_give_the_same_tokens(seed):
    """The rig's memory sees every wrong block; a suspect never has company, and everybody ends."""
    rng = random.Random(seed)
    requests = [([rng.randrange(3, 9) for _ in range(rng.randint(1, 20))], rng.randint(1, 12)) for _ in range(12)]
    suspicious = {key: rng.randint(1, 30) for key in rng.sample(range(12), 4)}

    def answers(*, with_suspects):
        rig = Rig(num_blocks=12, max_num_seqs=4, max_num_batched_tokens=9)
        for key, (prompt, max_tokens) in enumerate(requests):
            alone_until = suspicious.get(key, 0) if with_suspects else 0
            rig.add(prompt, priority=key % 3, alone_until=alone_until, max_tokens=max_tokens, ignore_eos=True)
        told = {key: [] for key in range(12)}
        while rig.scheduler.has_unfinished_sequences():
            batch = rig.scheduler.schedule()
            assert len(batch.entries) == 1 or not any(entry.sequence.runs_alone for entry in batch.entries)
            for output in rig.scheduler.update(batch, rig.memory.execute(batch)):
                told[output.key] += output.token_ids
        return told

    assert answers(with_suspects=True) == answers(with_suspects=False)
