"""Real processes that stand still: found from their page, dumped, ended and replaced; slow ones are left alone."""

import os
import signal
import time

import pytest

from aphrodited.health.states import Action
from aphrodited.paths import engine_program
from aphrodited.procfs import is_same_process, process_start_ticks
from aphrodited.supervision.ledger import Verdict
from tests.support.daemons import STALLING_DAEMON, wait_until
from tests.support.real_daemon import MARKER, real_daemon

ENGINE = engine_program("tiny", 0)
HANG, SLOW = 2, 3


@pytest.fixture(scope="module")
def shared():
    with real_daemon() as daemon:
        yield daemon


@pytest.fixture
def daemon(shared):
    """One daemon for the whole module: each test leaves it as it found it, serving."""
    shared.wait_serving()
    yield shared
    shared.wait_serving()


def verdicts(daemon):
    return [entry for entry in daemon.ledger.read() if isinstance(entry, Verdict)]


def actions_on(daemon, pid):
    return [verdict.action for verdict in verdicts(daemon) if verdict.pid == pid]


def test_a_stopped_engine_is_killed_at_once_and_replaced(daemon):
    assert daemon.complete()[0] == 200
    stream = daemon.open_stream()
    wait_until(lambda: stream.num_events, what="a first token")
    pid, num_restarts = daemon.engine().pid, daemon.engine().restarts
    os.kill(pid, signal.SIGSTOP)
    stream.wait()
    assert stream.error is not None
    assert stream.error["code"] == "ENGINE_DEAD"
    assert stream.is_done
    engine = daemon.new_engine(pid)
    assert engine.restarts == num_restarts + 1
    assert engine.last_exit is not None
    assert engine.last_exit.signal == "SIGKILL"
    assert engine.last_exit.cause.startswith("hang: no progress for")
    assert "process state T" in engine.last_exit.cause
    assert actions_on(daemon, pid) == [Action.SUSPECT, Action.KILL]
    assert daemon.complete()[0] == 200


def test_an_idle_engine_that_is_stopped_is_replaced_too(daemon):
    pid = daemon.engine().pid
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: daemon.get("/readyz")[0] == 503, what="readiness to be withdrawn")
    assert daemon.new_engine(pid).pid != pid
    assert daemon.complete()[0] == 200


def test_a_step_that_is_stuck_is_dumped_aborted_and_replaced(daemon):
    bystander = daemon.open_stream()
    wait_until(lambda: bystander.num_events, what="a first token")
    pid = daemon.engine().pid
    culprit = daemon.open_stream([MARKER, MARKER, HANG, 5])
    for stream in (culprit, bystander):
        stream.wait()
        assert stream.error is not None
        assert stream.error["code"] == "ENGINE_DEAD"
        assert stream.is_done
    assert culprit.num_events
    engine = daemon.new_engine(pid)
    assert engine.last_exit is not None
    assert engine.last_exit.signal == "SIGABRT"
    assert "hang: no progress for" in engine.last_exit.cause
    assert "while stepping" in engine.last_exit.cause
    assert actions_on(daemon, pid) == [Action.SUSPECT, Action.DUMP, Action.ABORT]
    log = daemon.log(ENGINE)
    assert "most recent call first" in log
    assert "_drill_pause_s" in log  # the very line in which it was stuck
    assert daemon.complete()[0] == 200


def test_a_process_that_ignores_the_abort_is_killed(daemon):
    """SIGABRT cannot be ignored by a worker of ours, so this one is stopped between dump and abort."""
    pid = daemon.engine().pid
    culprit = daemon.open_stream([MARKER, MARKER, HANG, 0])
    wait_until(lambda: Action.DUMP in actions_on(daemon, pid), what="the dump")
    os.kill(pid, signal.SIGSTOP)
    culprit.wait()
    assert daemon.new_engine(pid).last_exit.signal == "SIGKILL"
    assert actions_on(daemon, pid)[-1] == Action.KILL


@pytest.mark.timeout(150)
def test_a_slow_prefill_that_moves_is_never_judged(daemon):
    """Its first token takes twenty seconds, ten times recovery.hang_min_s."""
    pid = daemon.engine().pid
    status, answer = daemon.complete([MARKER, MARKER, SLOW, 20], timeout_s=120)
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 8
    assert daemon.engine().pid == pid
    assert actions_on(daemon, pid) == []


def test_a_stopped_api_worker_is_replaced_and_the_other_one_serves(daemon):
    pid, others = daemon.pid("api-0"), (daemon.pid("api-1"), daemon.pid("engine"))
    start_ticks = process_start_ticks(pid)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not is_same_process(pid, start_ticks), what="the stopped worker's end")
    wait_until(lambda: daemon.process_status("api-0").state == "ready", what="its successor")
    assert (daemon.pid("api-1"), daemon.pid("engine")) == others
    assert "hang" in daemon.process_status("api-0").last_exit.cause
    assert daemon.complete()[0] == 200


def test_an_api_worker_whose_loop_is_blocked_is_dumped_aborted_and_replaced_while_the_other_one_serves():
    with real_daemon(entry=STALLING_DAEMON) as daemon:
        pid, others = daemon.pid("api-0"), (daemon.pid("api-1"), daemon.pid("engine"))
        os.kill(pid, signal.SIGUSR1)
        wait_until(lambda: daemon.process_status("api-0").state == "suspect", what="suspicion")
        wait_until(lambda: actions_on(daemon, pid)[-1] == Action.ABORT, what="the abort")
        wait_until(lambda: daemon.process_status("api-0").state == "ready", what="its successor")
        assert actions_on(daemon, pid) == [Action.SUSPECT, Action.DUMP, Action.ABORT]
        assert "in stand_still" in daemon.log("api-0")  # where it stood
        (death,) = daemon.deaths("api-0")
        assert (death.signal, death.pid) == ("SIGABRT", pid)
        assert death.cause.startswith("hang: no progress for")
        assert (daemon.pid("api-1"), daemon.pid("engine")) == others
        assert daemon.complete()[0] == 200


def test_a_stopped_monitor_is_replaced_and_nobody_else_notices(daemon):
    stream = daemon.open_stream()
    pid, engine = daemon.pid("monitor"), daemon.pid("engine")
    os.kill(pid, signal.SIGSTOP)
    daemon.pid("monitor", other_than=pid)
    wait_until(lambda: daemon.process_status("monitor").state == "ready", what="the new monitor")
    assert stream.failure is None
    assert stream.error is None
    stream.close()
    assert daemon.pid("engine") == engine


def test_a_monitor_that_was_stopped_for_long_blames_nobody(daemon):
    pid, num_verdicts = daemon.pid("monitor"), len(verdicts(daemon))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5)  # longer than hang_min_s, shorter than the plugin's patience with the monitor
    os.kill(pid, signal.SIGCONT)
    rounds = daemon.process_status("monitor").num_finished
    wait_until(lambda: daemon.process_status("monitor").num_finished > rounds + 5, what="rounds")
    assert daemon.pid("monitor") == pid
    assert len(verdicts(daemon)) == num_verdicts
