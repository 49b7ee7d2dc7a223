"""Runs something long without taking the processor from whoever needs it. Linux: threads have priorities of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LOW_PRIORITY = 10
"""A nice value: about a tenth of a contended core."""

_Result = TypeVar("_Result")


def run_with_low_priority(task: Callable[[], _Result]) -> _Result:
    """What the task returns or raises, run in a thread that yields to others.

    The calling thread only waits and keeps its priority: nobody gets a lowered one back without privileges, so it is
    lowered where it ends with the task. Threads that the task starts would inherit it.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="low-priority", initializer=_lower_priority) as executor:
        return executor.submit(task).result()


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
