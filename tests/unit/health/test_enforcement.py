import os
import select
import signal
import subprocess
import sys

import pytest

from aphrodited.health.enforcement import SIGNALS, carry_out
from aphrodited.health.states import Action
from aphrodited.procfs import process_start_ticks


@pytest.mark.parametrize(("action", "number"), [(Action.DUMP, signal.SIGUSR2), (Action.ABORT, signal.SIGABRT)])
def test_a_signal_reaches_the_process_that_was_judged(sleeper, action, number):
    assert carry_out(action, sleeper.pid, process_start_ticks(sleeper.pid))
    assert sleeper.wait(10) == -number


def test_another_process_with_the_same_pid_is_spared(sleeper):
    assert not carry_out(Action.KILL, sleeper.pid, 1)
    assert sleeper.poll() is None


def test_a_process_that_is_gone_is_no_error():
    process = subprocess.Popen([sys.executable, "-c", ""])
    start_ticks = process_start_ticks(process.pid)
    process.wait()
    assert not carry_out(Action.KILL, process.pid, start_ticks)


def test_a_kill_takes_the_whole_group():
    code = "import os, time; pid = os.fork(); pid and print(pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        pidfd = os.pidfd_open(int(process.stdout.readline()))
        assert carry_out(Action.KILL, process.pid, process_start_ticks(process.pid))
        assert process.wait(10) == -signal.SIGKILL
        assert select.select([pidfd], [], [], 10)[0]
        os.close(pidfd)


def test_a_kill_of_a_process_that_leads_no_group_takes_only_that():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        assert os.getpgid(process.pid) == os.getpgid(0)
        assert carry_out(Action.KILL, process.pid, process_start_ticks(process.pid))
        assert process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("action", sorted(set(Action) - set(SIGNALS)))
def test_the_other_actions_send_nothing(sleeper, action):
    assert carry_out(action, sleeper.pid, process_start_ticks(sleeper.pid))
    assert sleeper.poll() is None
