"""Carries a verdict out: the signals of the ladder and the request to leave, each to the very process that was judged.

A pid is held by a pidfd while its start time is compared, so that a number that came into use again is never hit.
"""

from __future__ import annotations

import os
import signal

from aphrodited.health.states import Action
from aphrodited.procfs import is_same_process

SIGNALS: dict[Action, signal.Signals] = {
    Action.DUMP: signal.SIGUSR2,  # faulthandler writes every thread's stack to the log
    Action.ABORT: signal.SIGABRT,  # the same for the main thread, then the process ends
    Action.KILL: signal.SIGKILL,
}
"""The other actions send nothing."""


def carry_out(action: Action, pid: int, start_ticks: int) -> bool:
    """Send an action's signal if the process is still the one that was judged; False if it is gone.

    SIGKILL goes to the whole process group if the process leads it: what it forked must not outlive it.
    """
    number = SIGNALS.get(action)
    return number is None or _send(number, pid, start_ticks)


def ask_to_leave(pid: int, start_ticks: int) -> bool:
    """SIGTERM, as carry_out: the process finishes what it has, and the supervisor starts the next one."""
    return _send(signal.SIGTERM, pid, start_ticks)


def _send(number: signal.Signals, pid: int, start_ticks: int) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_same_process(pid, start_ticks):
            return False
        if number is signal.SIGKILL and os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True
