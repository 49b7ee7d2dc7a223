"""A memory that remembers what was stored in each slot, so that a wrong block is seen at once."""

import numpy as np

from aphrodited.engine.block_manager import BlockManager
from aphrodited.engine.pooling import Pooled
from aphrodited.engine.scheduler import Scheduler
from aphrodited.engine.sequence import Sequence
from aphrodited.request import EncodeRequest, GenerateRequest
from aphrodited.sampling.sampled import Sampled
from aphrodited.sampling_params import SamplingParams

EOS = 1


class CheckedMemory:
    """Stands for model and KV cache: stores each token's prefix in its slot and reads back all before it.

    The next token is a function of the tokens so far. `fails` are keys whose logits are not finite. With a window only
    what a token sees is read.
    """

    def __init__(self, block_size, window=None):
        self.block_size = block_size
        self.window = window
        self.slots = {}
        self.fails = set()
        self.num_computed = 0

    def slot(self, sequence, position):
        return sequence.block_table[position // self.block_size], position % self.block_size

    def execute(self, batch, on_progress=None):
        written = set()
        for entry in batch.entries:
            tokens = tuple(entry.sequence.token_ids)
            for position in range(entry.start, entry.start + entry.num_tokens):
                slot = self.slot(entry.sequence, position)
                assert slot not in written, "two tokens of one step in one slot"
                written.add(slot)
                self.slots[slot] = hash(tokens[: position + 1])
            self.num_computed += entry.num_tokens
        for entry in batch.entries:
            tokens = tuple(entry.sequence.token_ids)
            oldest = 0 if self.window is None else max(0, entry.start + 1 - self.window)
            for position in range(oldest, entry.start + entry.num_tokens):
                assert self.slots[self.slot(entry.sequence, position)] == hash(tokens[: position + 1])
            if entry.sequence.pooler is not None:
                positions = range(entry.start, entry.start + entry.num_tokens)
                entry.sequence.pooler.take(np.array([[hidden_state(tokens, i)] for i in positions]), entry.start)
        return [self.result(entry.sequence) for entry in batch.entries if entry.reaches_end]

    def result(self, sequence):
        if sequence.pooler is None:
            return self.next_token(sequence)
        return Pooled(None) if sequence.key in self.fails else sequence.pooler.finish()

    def next_token(self, sequence):
        if sequence.key in self.fails:
            return Sampled(None)
        token_id = 1 + hash(tuple(sequence.token_ids)) % 20
        return Sampled(2 if token_id in sequence.sampling_row().forbidden_token_ids else token_id)


def hidden_state(tokens, position):
    """The one number of a token's hidden state, which depends on all tokens up to it."""
    return float(hash(tuple(tokens[: position + 1])) % 1000)


class Rig:
    """A scheduler, its blocks and the checked memory."""

    def __init__(self, num_blocks=64, block_size=4, *, max_num_seqs=8, max_num_batched_tokens=32, max_num_waiting=100,
                 enable_prefix_caching=True, max_model_len=None, window=None):  # fmt: skip
        self.blocks = BlockManager(
            num_blocks,
            block_size,
            enable_prefix_caching=enable_prefix_caching,
            window=window,
            max_chunk=max_num_batched_tokens,
        )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_waiting=max_num_waiting,
        )
        self.memory = CheckedMemory(block_size, window)
        self.max_model_len = max_model_len or num_blocks * block_size
        self.num_added = 0

    def add(self, prompt, *, priority=0, num_replayed=0, alone_until=0, **params):
        params = SamplingParams(**params)
        request = GenerateRequest("g", list(prompt), params, priority, num_replayed, alone_until=alone_until)
        return self._add(request)

    def add_encode(self, prompt, *, pooling, priority=0, alone_until=0):
        return self._add(EncodeRequest("e", list(prompt), pooling, False, priority, alone_until=alone_until))

    def _add(self, request):
        key = self.num_added
        self.num_added += 1
        sequence = Sequence(
            key, request, seed=0, arrival=key, eos_token_ids=(EOS,), max_model_len=self.max_model_len, vocab_size=100
        )
        self.scheduler.add(sequence)
        return sequence

    def step(self):
        batch = self.scheduler.schedule()
        return batch, self.scheduler.update(batch, self.memory.execute(batch))

    def run(self, max_num_steps=1000):
        """Step until everything ended; the outputs of every key."""
        outputs = {}
        for _ in range(max_num_steps):
            if not self.scheduler.has_unfinished_sequences():
                return outputs
            for output in self.step()[1]:
                outputs.setdefault(output.key, []).append(output)
        raise AssertionError("does not end")
