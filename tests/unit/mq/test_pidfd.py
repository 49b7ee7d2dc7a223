"""Tests of aphrodited.mq.pidfd."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading

import pytest

from aphrodited.mq.pidfd import open_pidfd
from aphrodited.procfs import process_start_ticks


def test_it_becomes_readable_when_the_process_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    fd = open_pidfd(process.pid, process_start_ticks(process.pid) or 0)
    assert fd is not None
    assert select.select([fd], [], [], 0)[0] == []
    process.kill()
    assert select.select([fd], [], [], 10)[0] == [fd]
    process.communicate()
    os.close(fd)
    assert open_pidfd(process.pid, 1) is None


def test_another_process_of_the_same_number_is_not_it() -> None:
    assert open_pidfd(os.getpid(), 1) is None


@pytest.mark.parametrize("pid", [0, -1, 1 << 40])
def test_a_number_that_no_process_has_is_gone(pid: int) -> None:
    assert open_pidfd(pid, 0) is None


def test_a_thread_is_no_process() -> None:
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        assert open_pidfd(thread.native_id, 0) is None
    finally:
        is_over.set()
        thread.join()
