"""BlockManager: which sequence owns which block of the KV cache. Integers only: the memory is KVCachePool's.

A block is free (nobody owns it) or used (one owner or more). A full, computed block may be published under the hash of
its tokens and of all tokens before it; other sequences that begin alike then share it. Published blocks stay
findable while they are free, until they are handed out for something else: the longest unused first.

Where every layer of a model sees a window only, a sequence gives back what has fallen out of it while it goes on, and has
blocks ahead for a step's tokens only: so it holds at most `most_held` blocks, however long it is, and `least_held` are enough.
"""

from __future__ import annotations

import hashlib
import sys
from collections import OrderedDict

from aphrodited.engine.sequence import Sequence
from aphrodited.engine.windows import least_held, most_held

_HASH_SIZE = 16  # bytes: 2^64 blocks until a chance collision, and BLAKE2 leaves no way to make one
_GONE = 0  # in a block table: of a block that was given back; nothing reads it


class BlockManager:
    """Hands out `num_blocks` blocks of `block_size` token slots.

    window: how many tokens a token sees, itself included, in the layer where it sees most; None for all.
    max_chunk: tokens of one sequence that a step computes at most.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        window: int | None = None,
        max_chunk: int = 1,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._window = window
        self._most_held = sys.maxsize if window is None else min(num_blocks, most_held(window, max_chunk, block_size))
        self._enable_prefix_caching = enable_prefix_caching
        self._ref_counts = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # next to hand out first

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out, published ones included."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - len(self._free)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def can_hold(self, num_tokens: int) -> bool:
        """Whether a sequence of so many tokens can be computed with all blocks there are."""
        if self._window is not None and self.num_blocks >= least_held(self._window, self.block_size):
            return True
        return num_tokens <= self.num_blocks * self.block_size

    def admit(self, sequence: Sequence, *, num_reserved: int) -> bool:
        """Give a sequence without blocks what its tokens need, cached ones where there are, if `num_reserved` stay free.

        Sets its num_computed_tokens to what the cache held. Its last token is always left to compute, because
        logits are not cached. False, and nothing changed, if there are too few free blocks.
        """
        num_gone, cached = self._find_prefix(sequence)
        end_of_cached = num_gone + len(cached)
        num_new = min(self.num_blocks_for(len(sequence)) - end_of_cached, self._most_held - len(cached))
        num_revived = sum(self._ref_counts[block] == 0 for block in cached)
        if num_new + num_revived + num_reserved > len(self._free):
            return False
        for block in cached:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1
        sequence.block_table.extend([_GONE] * num_gone)
        sequence.block_table.extend(cached)
        sequence.block_table.extend(self._take() for _ in range(num_new))
        sequence.num_gone_blocks = num_gone
        sequence.num_computed_tokens = end_of_cached * self.block_size
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Make room for the next token that a running sequence computes. False if no block is free."""
        return self.extend(sequence, 1) > 0

    def extend(self, sequence: Sequence, num_tokens: int) -> int:
        """Make room for the next num_tokens that a running sequence computes, or for fewer: returns for how many."""
        table, computed = sequence.block_table, sequence.num_computed_tokens
        while len(table) * self.block_size < computed + num_tokens and self._free:
            if len(table) - sequence.num_gone_blocks >= self._most_held:
                break
            table.append(self._take())
        return min(num_tokens, len(table) * self.block_size - computed)

    def slide(self, sequence: Sequence) -> None:
        """Take back what the next token that the sequence computes does not see, nor any later one."""
        num_gone = self._num_unseen(sequence.num_computed_tokens)
        for i in range(sequence.num_gone_blocks, num_gone):
            self._give_back(sequence.block_table[i])
            sequence.block_table[i] = _GONE
        sequence.num_gone_blocks = num_gone

    def publish(self, sequence: Sequence, num_computed_before: int) -> None:
        """Let others find the blocks that became full and computed since num_computed_before."""
        if not self._enable_prefix_caching:
            return
        first = num_computed_before // self.block_size
        end = sequence.num_computed_tokens // self.block_size
        if first < end:
            self._extend_hashes(sequence, end)
        for i in range(first, end):
            block, block_hash = sequence.block_table[i], sequence.block_hashes[i]
            # Two sequences may compute equal blocks in one step: the first stays known, the other stays private.
            if self._hash_of[block] is None and block_hash not in self._block_of:
                self._hash_of[block] = block_hash
                self._block_of[block_hash] = block

    def release(self, sequence: Sequence, *, forget: bool = False) -> None:
        """Take back a sequence's blocks. With `forget`, nobody finds them again: what they hold is not to be trusted."""
        if forget:
            self._forget(sequence)
        for block in reversed(sequence.block_table[sequence.num_gone_blocks :]):
            self._give_back(block)  # the tail goes first: a shared beginning is worth more
        del sequence.block_table[:]
        sequence.num_gone_blocks = 0
        sequence.num_computed_tokens = 0

    def forget_all(self) -> None:
        """Empty the prefix cache."""
        for block in list(self._block_of.values()):
            self._unpublish(block)

    def _forget(self, sequence: Sequence) -> None:
        for block in sequence.block_table[sequence.num_gone_blocks :]:
            self._unpublish(block)
        for block_hash in sequence.block_hashes[: sequence.num_gone_blocks]:
            if block_hash in self._block_of:
                self._unpublish(self._block_of[block_hash])

    def _give_back(self, block: int) -> None:
        self._ref_counts[block] -= 1
        if self._ref_counts[block] == 0:
            self._free[block] = None
            if self._hash_of[block] is None:
                self._free.move_to_end(block, last=False)

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._unpublish(block)
        self._ref_counts[block] = 1
        return block

    def _unpublish(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            del self._block_of[block_hash]
            self._hash_of[block] = None

    def _num_unseen(self, position: int) -> int:
        """Leading blocks of which the token at this position sees nothing."""
        return 0 if self._window is None else max(0, position - self._window + 1) // self.block_size

    def _find_prefix(self, sequence: Sequence) -> tuple[int, list[int]]:
        """The longest beginning after which the next token finds all that it sees: blocks that it does not see, and the others."""
        if not (self._enable_prefix_caching and sequence.uses_prefix_cache):
            return 0, []
        num_full = (len(sequence) - 1) // self.block_size  # without the last token
        self._extend_hashes(sequence, num_full)
        end = first_found = 0
        for i, block_hash in enumerate(sequence.block_hashes[:num_full]):
            if block_hash not in self._block_of:
                if self._window is None:
                    break
                first_found = i + 1
            elif first_found <= self._num_unseen((i + 1) * self.block_size):
                end = i + 1
        num_unseen = self._num_unseen(end * self.block_size)
        return num_unseen, [self._block_of[block_hash] for block_hash in sequence.block_hashes[num_unseen:end]]

    def _extend_hashes(self, sequence: Sequence, num_full: int) -> None:
        hashes = sequence.block_hashes
        for i in range(len(hashes), num_full):
            tokens = sequence.token_ids[i * self.block_size : (i + 1) * self.block_size]
            parent = hashes[-1] if hashes else b""
            hashes.append(hashlib.blake2b(parent + tokens.tobytes(), digest_size=_HASH_SIZE).digest())
