"""Memory for weights that every step reads from end to end, in huge pages where the system has them.

With pages of 4 KiB a core looks up addresses for a quarter of its time: int8 weights were read at 13 GB/s, and at 17 from
here. Only for what is filled at once: of a huge page that is touched in one place, the whole is taken.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

REGION_BYTES = 32 * 1024**2

_CACHE_LINE = 64
_Scalar = TypeVar("_Scalar", bound=np.generic)


class HugePageArena:
    """Hands out memory that lives as long as any array in its region."""

    def __init__(self) -> None:
        self._region = np.empty(0, np.uint8)
        self._used = 0

    def copy(self, array: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """The array, contiguous, in memory of the arena."""
        start = -(-self._used // _CACHE_LINE) * _CACHE_LINE
        if start + array.nbytes > len(self._region):
            self._region, start = _map(max(REGION_BYTES, array.nbytes)), 0
        self._used = start + array.nbytes
        copied = self._region[start : self._used].view(array.dtype).reshape(array.shape)
        copied[...] = array
        return copied


def _map(num_bytes: int) -> NDArray[np.uint8]:
    region = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        region.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(region, np.uint8)
