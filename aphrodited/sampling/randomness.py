"""Counter-based random numbers: a pure function of (seed, position, draw), so no batch, restart or preemption
can change them.

Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011); the test holds
its published known answers. Keeps no state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]  # each holds 32 bits, so that products need no second word

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)  # golden ratio, sqrt(3) - 1
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Four random 32-bit words per element. All arrays have one shape; every element holds 32 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = c0 * _MULTIPLIERS[0]
        product1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (product1 >> _HALF) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _HALF) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0 = (k0 + _WEYL[0]) & _LOW
        k1 = (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(seeds: ArrayLike, positions: ArrayLike, draw: int = 0) -> NDArray[np.float64]:
    """One number in [0, 1) per (seed, position), with 52 random bits; `draw` counts tries for the same token."""
    seed = np.asarray(seeds, dtype=np.uint64)
    position = np.asarray(positions, dtype=np.uint64)
    counter = position & _LOW, position >> _HALF, np.full_like(position, draw), np.zeros_like(position)
    high, low, _, _ = philox4x32(counter, (seed & _LOW, seed >> _HALF))
    # 52 bits, not 53: u * total then stays below total in double precision.
    return ((high << np.uint64(20)) | (low >> np.uint64(12))).astype(np.float64) * 2.0**-52
