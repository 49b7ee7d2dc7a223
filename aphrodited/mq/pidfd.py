"""Descriptors that become readable when a process ends: a death as a fact, within a millisecond."""

from __future__ import annotations

import errno
import os

from aphrodited.procfs import is_same_process

MAX_PID = 1 << 22  # PID_MAX_LIMIT, proc(5)


def open_pidfd(pid: int, start_ticks: int) -> int | None:
    """Watch the process of that pid that started then; None if there is none. The caller closes the descriptor.

    The number may be a stranger's word: one of a thread is no process either, which Linux says as ENOENT, before 6.15 as EINVAL.
    """
    if not 0 < pid <= MAX_PID:
        return None
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL):
            return None
        raise
    if is_same_process(pid, start_ticks):  # checked after opening: the number cannot change hands from here on
        return fd
    os.close(fd)
    return None
