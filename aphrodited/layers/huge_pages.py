"""Memory for weights that every step reads from end to end, in huge pages where the system has them.

With pages of 4 KiB a core looks up addresses for a part of its time: int8 weights were read at 13 GB/s, and at 17 from here;
float32 weights by two cores at 37 and 43. Pages become huge ones when they are filled, in a thread beside whoever uses them and
while he rests: a huge page that is touched first may have to come from the host of a virtual machine, bit by bit, which took
10 s a gigabyte, and meanwhile whoever needs memory waits: prompts were read at a fifth of their rate.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import time
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

REGION_BYTES = 32 * 1024**2
HUGE_PAGE_BYTES = 2 * 1024**2

REST_S = 0.1
"""Whoever has not used his weights for so long rests."""

LONGEST_WAIT_S = 1.0
"""For a rest. After that one page is made anyway, 26 ms at worst."""

MAX_TRIES = 3
"""For a page: the system refuses one that somebody else is just looking at, or for which no memory is at hand."""

_MADV_COLLAPSE = 25  # Linux 6.1; /usr/include/asm-generic/mman-common.h
_CACHE_LINE = 64
_Scalar = TypeVar("_Scalar", bound=np.generic)


class HugePageArena:
    """Hands out memory that lives as long as any array in its region."""

    def __init__(self) -> None:
        self._region = np.empty(0, np.uint8)
        self._used = 0
        self._filled: list[NDArray[np.uint8]] = []  # what is used of the regions before

    def copy(self, array: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """The array, contiguous, in memory of the arena."""
        copied = self.empty(array.shape, array.dtype)
        copied[...] = array
        return copied

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[_Scalar]) -> NDArray[_Scalar]:
        """An array for the caller to fill."""
        num_bytes = math.prod(shape) * dtype.itemsize
        start = -(-self._used // _CACHE_LINE) * _CACHE_LINE
        if start + num_bytes > len(self._region):
            self._filled.append(self._region[: self._used])
            region = mmap.mmap(-1, max(REGION_BYTES, num_bytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._region, start = np.frombuffer(region, np.uint8), 0
        self._used = start + num_bytes
        return self._region[start : self._used].view(dtype).reshape(shape)

    def collapse(self, rested_s: Callable[[], float], *, share: float = 1.0) -> Thread:
        """Begin to make huge pages of all that was handed out, which must be filled by now; it may be read meanwhile.

        rested_s: for how many seconds nobody has used it.  share: of a core that this may take, at most; a priority does not
        help, since a page is made in one piece.
        """
        regions = [*self._filled, self._region[: self._used]]
        thread = Thread(target=_collapse, args=(regions, rested_s, share), name="huge-pages", daemon=True)
        thread.start()
        return thread


def _collapse(regions: list[NDArray[np.uint8]], rested_s: Callable[[], float], share: float) -> None:
    """Page by page, and once more those that could not be made at the time. Ends early on a system that has no huge pages."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise  # mmap's own holds the interpreter's lock
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = [page for region in regions for page in _pages_within(region)]
    for _ in range(MAX_TRIES):
        refused = []
        for page in pages:
            _await_rest(rested_s)
            began_at_s = time.monotonic()
            if madvise(page, HUGE_PAGE_BYTES, _MADV_COLLAPSE) != 0:
                if ctypes.get_errno() == errno.EINVAL:
                    return
                refused.append(page)
            time.sleep((time.monotonic() - began_at_s) * (1 / share - 1))
        pages = refused


def _pages_within(region: NDArray[np.uint8]) -> range:
    """Addresses of the huge pages that lie wholly in the region."""
    begin, end = region.ctypes.data, region.ctypes.data + len(region)
    return range(-(-begin // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES)


def _await_rest(rested_s: Callable[[], float]) -> None:
    give_up_at_s = time.monotonic() + LONGEST_WAIT_S
    while rested_s() < REST_S and time.monotonic() < give_up_at_s:
        time.sleep(REST_S / 2)
