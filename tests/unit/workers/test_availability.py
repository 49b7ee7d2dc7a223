import os
import subprocess
import sys

import pytest

from aphrodited.page import PageWriter, Phase
from aphrodited.paths import DaemonPaths, engine_program
from aphrodited.supervision.program_state import LaunchState, ProgramState, write_program_state
from aphrodited.workers.availability import MAX_AGE_S, RESPAWN_S, EngineAvailability

PROGRAM = engine_program("m", 0)


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
def availability(paths, clock):
    return EngineAvailability([PROGRAM], paths, clock, boottime=lambda: 1000.0)


@pytest.fixture
def launch(paths):
    """Call it with a state for what the launcher, here this process, says."""

    def write(state, next_try_at_s=None, reason="", pid=None, program=PROGRAM):
        told = ProgramState(program, pid or os.getpid(), state, 0.0, reason, next_try_at_s)
        write_program_state(paths.program_state(program), told)

    return write


@pytest.mark.parametrize("state", [LaunchState.BACKOFF, LaunchState.PARKED])
def test_a_delayed_start_is_due_when_the_launcher_says(availability, launch, state):
    launch(state, 1042.0, "it crashed")
    known = availability()
    assert (known.state, known.due_in_s, known.reason) == (state.value, 42.0, "it crashed")


def test_a_start_that_is_overdue_is_due_now(availability, launch):
    launch(LaunchState.BACKOFF, 900.0)
    assert availability().due_in_s == 0.0


@pytest.mark.parametrize(
    ("phase", "state"), [(Phase.LOADING, "loading"), (Phase.READY, "ready"), (Phase.STEPPING, "ready")]
)
def test_a_running_engine_is_what_its_page_says(availability, paths, launch, phase, state):
    launch(LaunchState.RUNNING)
    PageWriter(paths.page(PROGRAM)).update(phase=phase, message="weights")
    known = availability()
    assert (known.state, known.due_in_s, known.reason) == (state, 0.0, "weights")


def test_an_engine_without_a_process_is_expected_for_a_moment_only(availability, launch, clock):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    launch(LaunchState.RUNNING, pid=int(gone.stdout))
    assert availability().due_in_s == 0.0
    clock.now_s += RESPAWN_S
    known = availability()
    assert (known.state, known.due_in_s) == ("stopped", None)


def test_a_second_death_long_after_the_first_is_a_new_one(availability, launch, clock):
    first, second = (_ended_process() for _ in range(2))
    launch(LaunchState.RUNNING, pid=first)
    assert availability().state == "starting"
    clock.now_s += RESPAWN_S + 100  # it came back and served, and nobody had to ask
    launch(LaunchState.RUNNING, pid=second)
    assert availability().due_in_s == 0.0
    clock.now_s += RESPAWN_S
    assert availability().due_in_s is None


def _ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_files_are_read_at_most_twice_a_second(availability, launch, clock):
    launch(LaunchState.PARKED, 1042.0)
    assert availability().state == "parked"
    launch(LaunchState.RUNNING)
    clock.now_s += MAX_AGE_S / 2
    assert availability().state == "parked"
    clock.now_s += MAX_AGE_S / 2
    assert availability().state == "starting"


def test_of_several_engines_the_one_nearest_to_serving_counts(paths, clock, launch):
    standby = engine_program("m", 1)
    known = EngineAvailability([PROGRAM, standby], paths, clock, boottime=lambda: 1000.0)
    launch(LaunchState.PARKED, 1042.0, "it crashed")
    launch(LaunchState.RUNNING, program=standby)
    PageWriter(paths.page(standby)).update(phase=Phase.STANDBY)
    assert (known().state, known().due_in_s) == ("standby", 0.0)
    clock.now_s += MAX_AGE_S
    launch(LaunchState.BACKOFF, 1010.0, program=standby)
    paths.page(standby).unlink()
    assert (known().state, known().due_in_s) == ("backoff", 10.0)
