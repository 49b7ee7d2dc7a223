"""Which engine of a model may load, by what the others say of themselves. The clock is a number."""

import os
import subprocess
import sys
import threading

import pytest

from aphrodited.page import PageWriter, Phase
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.launch_queue import SETTLED_S, LaunchQueue
from aphrodited.supervision.ledger import boottime_s
from aphrodited.supervision.program_state import LaunchState, ProgramState, write_program_state

PEER = "engine-peer-1"


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def paths(tmp_path):
    return DaemonPaths(tmp_path / "run", tmp_path / "log", tmp_path / "state")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue(paths, clock):
    return LaunchQueue(paths, paths.model("m"), [PEER], clock)


@pytest.fixture
def peer_is(paths):
    """peer_is(launch state, phase): what the peer, here this process, says of itself."""
    pages = []

    def write(state, phase=None, pid=None, since_s=None):
        told = ProgramState(PEER, pid or os.getpid(), state, boottime_s() if since_s is None else since_s)
        write_program_state(paths.program_state(PEER), told)
        if phase is not None:
            pages.append(PageWriter(paths.page(PEER)))
            pages[-1].update(phase=phase)

    yield write
    for page in pages:
        page.close()


def test_an_engine_without_peers_loads_at_once(queue):
    assert queue.reason_to_wait() == ""


@pytest.mark.parametrize("state", [LaunchState.BACKOFF, LaunchState.PARKED, LaunchState.WAITING])
def test_a_peer_that_waits_itself_is_not_waited_for(queue, peer_is, state):
    peer_is(state)
    assert queue.reason_to_wait() == ""


@pytest.mark.parametrize("phase", [None, Phase.STARTING, Phase.LOADING, Phase.STANDBY])
def test_a_peer_that_is_about_to_serve_goes_first(queue, peer_is, phase):
    peer_is(LaunchState.RUNNING, phase)
    assert queue.reason_to_wait() == f"{PEER} is about to serve"


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.FAILED])
def test_a_peer_that_leaves_is_replaced_at_once(queue, peer_is, phase):
    peer_is(LaunchState.RUNNING, phase)
    assert queue.reason_to_wait() == ""


def test_a_peer_that_has_just_begun_to_serve_has_the_cores_for_a_while(queue, peer_is, clock):
    peer_is(LaunchState.RUNNING, Phase.STANDBY)
    assert queue.reason_to_wait()
    peer_is(LaunchState.RUNNING, Phase.STEPPING)
    clock.now_s += 60
    assert queue.reason_to_wait() == f"{PEER} has just begun to serve"
    clock.now_s += SETTLED_S - 0.1
    assert queue.reason_to_wait()
    clock.now_s += 0.2
    assert queue.reason_to_wait() == ""


def test_a_peer_that_died_meanwhile_is_not_waited_for(queue, peer_is):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    peer_is(LaunchState.RUNNING, pid=gone.pid)
    assert queue.reason_to_wait() == ""


def test_somebody_else_with_the_number_of_a_dead_peer_is_not_waited_for(queue, peer_is):
    peer_is(LaunchState.RUNNING, since_s=1.0)  # of a life before this process started
    assert queue.reason_to_wait() == ""


def test_of_two_that_may_load_one_begins_and_the_other_sees_it(paths, clock, peer_is):
    first = LaunchQueue(paths, paths.model("m"), [], clock)
    second = LaunchQueue(paths, paths.model("m"), [PEER], clock)
    assert first.reason_to_wait() == ""
    answers = []
    asking = threading.Thread(target=lambda: answers.append(second.reason_to_wait()))
    asking.start()
    peer_is(LaunchState.RUNNING)
    assert answers == []
    os.close(first._lock_fd)  # as the execution of the worker does
    asking.join(10)
    assert answers == [f"{PEER} is about to serve"]
