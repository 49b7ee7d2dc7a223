"""BlockManager: which sequence owns which block of the KV cache. Integers only: the memory is KVCachePool's.

A block is free (nobody owns it) or used (one owner or more). A full, computed block may be published under the hash of
its tokens and of all tokens before it; other sequences that begin alike then share it. Published blocks stay
findable while they are free, until they are handed out for something else: the longest unused first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from aphrodited.engine.sequence import Sequence

_HASH_SIZE = 16  # bytes: 2^64 blocks until a chance collision, and BLAKE2 leaves no way to make one


class BlockManager:
    """Hands out `num_blocks` blocks of `block_size` token slots."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
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

    def admit(self, sequence: Sequence, *, num_reserved: int) -> bool:
        """Give a sequence without blocks all that its tokens need, cached ones where there are, if `num_reserved` stay free.

        Sets its num_computed_tokens to what the cache held. Its last token is always left to compute, because
        logits are not cached. False, and nothing changed, if there are too few free blocks.
        """
        cached = self._find_prefix(sequence)
        num_new = self.num_blocks_for(len(sequence)) - len(cached)
        num_revived = sum(self._ref_counts[block] == 0 for block in cached)
        if num_new + num_revived + num_reserved > len(self._free):
            return False
        for block in cached:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1
        sequence.block_table.extend(cached)
        sequence.block_table.extend(self._take() for _ in range(num_new))
        sequence.num_computed_tokens = len(cached) * self.block_size
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Make room for the newest token of a running sequence. False if no block is free."""
        if len(sequence) <= len(sequence.block_table) * self.block_size:
            return True
        if not self._free:
            return False
        sequence.block_table.append(self._take())
        return True

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
        for block in reversed(sequence.block_table):  # the tail goes first: a shared beginning is worth more
            if forget:
                self._unpublish(block)
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)
        del sequence.block_table[:]
        sequence.num_computed_tokens = 0

    def forget_all(self) -> None:
        """Empty the prefix cache."""
        for block in list(self._block_of.values()):
            self._unpublish(block)

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

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        if not (self._enable_prefix_caching and sequence.uses_prefix_cache):
            return []
        num_full = (len(sequence) - 1) // self.block_size  # without the last token
        self._extend_hashes(sequence, num_full)
        found: list[int] = []
        for block_hash in sequence.block_hashes[:num_full]:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def _extend_hashes(self, sequence: Sequence, num_full: int) -> None:
        hashes = sequence.block_hashes
        for i in range(len(hashes), num_full):
            tokens = sequence.token_ids[i * self.block_size : (i + 1) * self.block_size]
            parent = hashes[-1] if hashes else b""
            hashes.append(hashlib.blake2b(parent + tokens.tobytes(), digest_size=_HASH_SIZE).digest())
