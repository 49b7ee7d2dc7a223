"""How functions become machine code that is kept on disk: numba's compiler, set up in one way for all kernels.

Knows no kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bytes = NDArray[np.int8]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Kernel = Callable[..., Any]

IN_ORDER = {"contract"}  # sums keep their written order; a product may be added in one rounding
REORDERED = {"contract", "reassoc", "nsz", "arcp"}  # a sum may be reordered, but always in the same way


def use_threads(wanted: int) -> int:
    """Let kernels called by this thread use `wanted` threads, or as many as numba has; returns how many."""
    num_threads = min(wanted, int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    numba.set_num_threads(num_threads)
    return num_threads


def compile_kernel(
    function: Kernel, fastmath: set[str], *, parallel: bool = False, releases_lock: bool = False
) -> Kernel:
    """The function as machine code; without a cache where numba finds no directory that it may write.

    A division by zero gives what the CPU gives, as in numpy: an exception would leave no loop to be vectorised.
    releases_lock: other Python threads run while it does.
    """
    options: dict[str, Any] = {"parallel": parallel, "fastmath": fastmath, "error_model": "numpy", "nogil": releases_lock}
    try:
        kernel: Kernel = numba.njit(function, cache=True, **options)
    except RuntimeError:
        kernel = numba.njit(function, **options)
    return kernel


def run_shares(share: Kernel, all_shares: Kernel, num_threads: int, *arguments: Any) -> None:
    """The whole work of a kernel: share(0, 1, *arguments), or all_shares(num_threads, *arguments) for several threads.

    share(thread, num_threads, *arguments) is one thread's share of it; all_shares runs one in each thread. They are two
    functions because one that is compiled with and without threads would overwrite itself in numba's cache.
    """
    if num_threads == 1:
        share(0, 1, *arguments)
        return
    before = numba.get_num_threads()
    try:
        all_shares(use_threads(num_threads), *arguments)
    finally:
        numba.set_num_threads(before)
