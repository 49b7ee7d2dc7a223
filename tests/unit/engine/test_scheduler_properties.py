"""Any history of requests, aborts, failures and steps: blocks add up, memory holds what it should, everybody ends once."""

import struct
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aphrodited.engine.sequence import SequenceStatus
from aphrodited.engine.windows import least_held, most_held
from aphrodited.errors import ContextLengthError, QueueFullError
from aphrodited.request import Pooling
from tests.support.scheduler_rig import Rig, hidden_state

# A tiny alphabet and a tiny pool: shared prefixes, preemption and reuse of blocks are the rule.
PROMPTS = st.one_of(
    st.lists(st.integers(1, 2), min_size=1, max_size=24), st.integers(1, 60).map(lambda length: [1] * length)
)
BLOCK_SIZE = 2


def expected_embedding(prompt, pooling):
    states = [hidden_state(prompt, position) for position in range(len(prompt))]
    return struct.pack("<f", states[-1] if pooling is Pooling.LAST else sum(states) / len(states))


class SchedulerHistory(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(1, 16),
        max_num_seqs=st.integers(1, 5),
        budget=st.integers(1, 20),
        caching=st.booleans(),
        window=st.one_of(st.none(), st.integers(1, 12)),
    )
    def start(self, num_blocks, max_num_seqs, budget, caching, window):
        is_endless = window is not None and num_blocks >= least_held(window, BLOCK_SIZE)
        self.most_held = num_blocks if window is None else most_held(window, budget, BLOCK_SIZE)
        self.rig = Rig(
            num_blocks,
            block_size=BLOCK_SIZE,
            window=window,
            max_model_len=80 if is_endless else num_blocks * BLOCK_SIZE,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            max_num_waiting=4,
            enable_prefix_caching=caching,
        )
        self.sequences = {}
        self.embeddings = {}  # what each must be
        self.ended = Counter()

    @rule(
        prompt=PROMPTS,
        priority=st.integers(0, 2),
        max_tokens=st.one_of(st.none(), st.integers(1, 12)),
        ignore_eos=st.booleans(),
    )
    def add(self, prompt, priority, max_tokens, ignore_eos):
        key = self.rig.num_added
        try:
            sequence = self.rig.add(prompt, priority=priority, max_tokens=max_tokens, ignore_eos=ignore_eos)
        except ContextLengthError:
            assert len(prompt) > self.rig.max_model_len
        except QueueFullError:
            assert len(self.unfinished()) >= 5
        else:
            self.sequences[key] = sequence

    @rule(prompt=PROMPTS, priority=st.integers(0, 2), pooling=st.sampled_from(Pooling))
    def add_encode(self, prompt, priority, pooling):
        key = self.rig.num_added
        try:
            self.sequences[key] = self.rig.add_encode(prompt, pooling=pooling, priority=priority)
        except ContextLengthError:
            assert len(prompt) > self.rig.max_model_len
        except QueueFullError:
            assert len(self.unfinished()) >= 5
        else:
            self.embeddings[key] = expected_embedding(prompt, pooling)

    @rule(data=st.data())
    def abort(self, data):
        if self.unfinished():
            key = data.draw(st.sampled_from(sorted(self.unfinished())))
            assert self.rig.scheduler.abort(key)
            self.ended[key] += 1

    @rule(data=st.data())
    def fail(self, data):
        if self.unfinished():
            self.rig.memory.fails.add(data.draw(st.sampled_from(sorted(self.unfinished()))))

    @rule(count=st.integers(1, 5))
    def steps(self, count):
        for _ in range(count):
            self.step()

    def step(self):
        running = self.keys_of(SequenceStatus.RUNNING)
        batch, outputs = self.rig.step()
        self.nobody_overtakes_or_starves(running, batch)
        assert batch.num_tokens == sum(entry.num_tokens for entry in batch.entries)
        assert batch.num_tokens <= self.rig.scheduler._max_num_batched_tokens
        assert bool(batch.entries) == bool(self.unfinished() or outputs), "there is work, and nobody does it"
        for output in outputs:
            if output.embedding is not None:
                assert output.embedding == self.embeddings[output.key]
        self.ended.update(output.key for output in outputs if output.finish_reason is not None)

    def nobody_overtakes_or_starves(self, were_running, batch):
        """were_running: the keys before the step. The first in rank of all who run, a newcomer of higher priority included, gets
        on in every step, and whoever begins is the next in rank."""
        scheduled = {entry.sequence.key for entry in batch.entries}
        begun = scheduled - were_running
        waiting = self.keys_of(SequenceStatus.WAITING)
        if begun:
            last_begun = max(self.sequences[key].rank for key in begun)
            assert all(self.sequences[key].rank > last_begun for key in waiting), "somebody overtook"
        if could_run := were_running | begun:
            first = min(could_run, key=lambda key: self.sequences[key].rank)
            assert first in scheduled, "the first of those who run was held up"
        else:
            assert not scheduled

    @invariant()
    def blocks_add_up(self):
        if not hasattr(self, "rig"):
            return
        blocks = self.rig.blocks
        owners = Counter(b for s in self.sequences.values() for b in s.block_table[s.num_gone_blocks :])
        assert all(len(s.block_table) - s.num_gone_blocks <= self.most_held for s in self.sequences.values())
        assert blocks.num_free_blocks + blocks.num_used_blocks == blocks.num_blocks
        assert blocks.num_used_blocks == len(owners)
        assert [blocks._ref_counts[b] for b in range(blocks.num_blocks)] == [owners[b] for b in range(blocks.num_blocks)]
        assert all((owners[b] == 0) == (b in blocks._free) for b in range(blocks.num_blocks))

    @invariant()
    def everybody_ends_at_most_once(self):
        if hasattr(self, "rig"):
            finished = {k for k, s in self.sequences.items() if s.status is SequenceStatus.FINISHED}
            assert finished == set(self.ended)
            assert all(count == 1 for count in self.ended.values())

    def keys_of(self, status):
        return {key for key, s in self.sequences.items() if s.status is status}

    def unfinished(self):
        return {key for key, s in self.sequences.items() if s.status is not SequenceStatus.FINISHED}

    def teardown(self):
        if not hasattr(self, "rig"):
            return
        for _ in range(2000):
            if not self.unfinished():
                break
            self.step()
        assert self.ended == Counter(self.sequences.keys())
        assert self.rig.blocks.num_used_blocks == 0


TestSchedulerHistory = SchedulerHistory.TestCase
TestSchedulerHistory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
