"""A warm engine's wait for its promotion: until the process that serves the model ends, or lets go of the lock.

    the lock is let go, or its holder ends    a thread that waits for it in the kernel gets it at once
    a second has passed                       a tick
    the lock is ours, but nobody              give it back: the operator stopped the model
    wants the model to be served

The kernel frees the lock of a process that ends, so there is never more than one engine that takes requests. Knows no
model and no socket.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable

from aphrodited.mq.endpoints import Generation, begin_generation, open_lock, try_lock
from aphrodited.paths import ModelPaths

TICK_S = 1.0


def wait_for_promotion(
    paths: ModelPaths, *, is_wanted: Callable[[], bool], on_tick: Callable[[], None]
) -> Generation:
    """Become the model's active engine as soon as there is no other one and the model is wanted.

    on_tick: called whenever it has to wait, at least each second.
    """
    lock_fd = open_lock(paths)
    try:
        while True:
            while not try_lock(lock_fd):
                _wait_for_lock(lock_fd, on_tick)
            if is_wanted():
                return begin_generation(paths, lock_fd)
            fcntl.flock(lock_fd, fcntl.LOCK_UN)
            on_tick()
            time.sleep(TICK_S)
    except BaseException:
        os.close(lock_fd)
        raise


def _wait_for_lock(lock_fd: int, on_tick: Callable[[], None]) -> None:
    """Return when the lock is ours, or cannot be waited for.

    If `on_tick` raises, the thread goes on waiting; but its descriptor is closed then, so that it never holds the lock.
    """
    waiting = threading.Thread(target=_take_lock, args=(lock_fd,), name="lock", daemon=True)
    waiting.start()
    while waiting.is_alive():
        on_tick()
        waiting.join(TICK_S)


def _take_lock(lock_fd: int) -> None:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
    except OSError:  # no locks left in the kernel, say: the caller tries it once more, and comes back
        time.sleep(TICK_S)
