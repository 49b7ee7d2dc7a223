import os
import threading

import pytest

from aphrodited.engine.priority import LOW_PRIORITY, run_with_low_priority


def test_only_the_thread_of_the_task_has_low_priority():
    before = os.getpriority(os.PRIO_PROCESS, 0)
    ident, nice = run_with_low_priority(lambda: (threading.get_ident(), os.getpriority(os.PRIO_PROCESS, 0)))
    assert ident != threading.get_ident()
    assert nice == max(before, LOW_PRIORITY)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_what_the_task_raises_is_raised():
    def fail():
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        run_with_low_priority(fail)
