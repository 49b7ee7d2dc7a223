"""A warm engine's wait for its promotion: until the process that serves the model is gone, or lets go of the lock.

    the holder's process ends       seen at once (pidfd): try the lock
    a second has passed             a tick; try the lock
    the lock is ours, but nobody    give it back: the operator stopped the model
    wants the model to be served

The kernel frees the lock of a process that ends, so there is never more than one active engine. Knows no model and
no socket.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Callable

from aphrodited.mq.endpoints import Generation, begin_generation, open_lock, read_holder, try_lock
from aphrodited.mq.pidfd import open_pidfd
from aphrodited.paths import ModelPaths

TICK_S = 1.0
HAND_OVER_S = 0.01
"""Between two tries of a lock whose holder is gone or has not written its name yet: a matter of milliseconds."""


def wait_for_promotion(
    paths: ModelPaths, *, is_wanted: Callable[[], bool], on_tick: Callable[[], None]
) -> Generation:
    """Become the model's active engine as soon as there is no other one and the model is wanted.

    on_tick: called whenever it has to wait, at least each second.
    """
    lock_fd = open_lock(paths)
    try:
        while True:
            if not try_lock(lock_fd):
                on_tick()
                _wait_for_holder(lock_fd)
            elif is_wanted():
                return begin_generation(paths, lock_fd)
            else:
                fcntl.flock(lock_fd, fcntl.LOCK_UN)
                on_tick()
                time.sleep(TICK_S)
    except BaseException:
        os.close(lock_fd)
        raise


def _wait_for_holder(lock_fd: int) -> None:
    """Return when the holder's process has ended, after TICK_S at most."""
    holder = read_holder(lock_fd)
    pidfd = open_pidfd(*holder) if holder is not None else None
    if pidfd is None:
        time.sleep(HAND_OVER_S)
        return
    try:
        watch = select.poll()
        watch.register(pidfd, select.POLLIN)
        watch.poll(TICK_S * 1000)
    finally:
        os.close(pidfd)
