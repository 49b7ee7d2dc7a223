"""Sets of tokens as packed bits: token i is bit i % 8 of byte i // 8. Plain numpy: knows no tensors and no requests."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

Bitmask = NDArray[np.uint8]  # [ceil(V / 8)]; bits from V on mean nothing


def mask_of(token_ids: Collection[int], vocab_size: int) -> Bitmask:
    """The set of these tokens."""
    bits = np.zeros(vocab_size, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little")


def full_mask(vocab_size: int) -> Bitmask:
    """The set of all tokens."""
    return np.packbits(np.ones(vocab_size, dtype=np.uint8), bitorder="little")


def without(mask: Bitmask, token_ids: Collection[int]) -> Bitmask:
    """The set less these tokens, as a copy."""
    reduced = mask.copy()
    ids = np.fromiter(token_ids, dtype=np.int64)
    np.bitwise_and.at(reduced, ids // 8, ~(np.uint8(1) << (ids % 8).astype(np.uint8)))
    return reduced


def unpacked(masks: list[Bitmask], vocab_size: int) -> NDArray[np.bool_]:
    """One row of truth values for each mask: [R, V]."""
    return np.unpackbits(np.stack(masks), axis=1, count=vocab_size, bitorder="little").view(np.bool_)
