import fcntl
import os
import subprocess
import sys

from aphrodited.health.probes import NOTHING_SEEN, lock_holder, locked_at_s, look_at, process_uptime_s
from aphrodited.page import Phase
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.ledger import boottime_s
from aphrodited.supervision.program_state import LaunchState, ProgramState, write_program_state
from aphrodited.supervision.runtime_dir import take_lock


def write_launch(paths, program, pid, state=LaunchState.RUNNING, **fields):
    write_program_state(paths.program_state(program), ProgramState(program, pid, state, boottime_s(), **fields))


def test_nothing_is_seen_where_nothing_was_written(paths):
    assert look_at("engine-x-0", paths) == NOTHING_SEEN


def test_page_and_launch_of_a_living_process_are_seen(paths, page_of, sleeper):
    page_of("p", sleeper.pid).update(phase=Phase.LOADING)
    write_launch(paths, "p", sleeper.pid)
    look = look_at("p", paths)
    assert look.pid == sleeper.pid
    assert look.page is not None
    assert look.page.phase is Phase.LOADING
    assert look.launch is not None


def test_what_a_dead_process_left_behind_is_not_seen(paths, page_of):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        page_of("p", process.pid)
        write_launch(paths, "p", process.pid)
        process.kill()
        process.wait()
    assert look_at("p", paths) == NOTHING_SEEN


def test_a_zombie_is_dead(paths, page_of):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        page_of("p", process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert look_at("p", paths) == NOTHING_SEEN
    finally:
        process.communicate()


def test_the_page_of_an_earlier_process_with_the_same_pid_is_not_seen(paths, page_of, sleeper):
    page_of("p", sleeper.pid).update(start_ticks=1)
    assert look_at("p", paths) == NOTHING_SEEN


def test_a_waiting_launcher_is_seen_beside_the_page_of_a_dead_worker(paths, page_of, sleeper):
    page_of("p", sleeper.pid).update(start_ticks=1)
    write_launch(paths, "p", sleeper.pid, LaunchState.PARKED)
    look = look_at("p", paths)
    assert (look.pid, look.page) == (sleeper.pid, None)
    assert look.launch is not None
    assert look.launch.state is LaunchState.PARKED


def test_of_two_living_processes_the_one_that_started_last_counts(paths, page_of, sleeper):
    page_of("p", os.getpid())
    write_launch(paths, "p", sleeper.pid)  # started after this test's own process
    look = look_at("p", paths)
    assert (look.pid, look.page) == (sleeper.pid, None)


def test_the_holder_of_a_lock_is_found_without_touching_the_lock(tmp_path):
    lock = tmp_path / "lock"
    assert lock_holder(lock) is None
    with open(lock, "w") as file:
        assert lock_holder(lock) is None
        fcntl.flock(file, fcntl.LOCK_EX)
        assert lock_holder(lock) == os.getpid()


def test_a_daemon_runs_since_it_took_its_lock(tmp_path):
    paths = DaemonPaths(tmp_path / "run", tmp_path / "log", tmp_path / "state")
    assert locked_at_s(paths.daemon_lock) is None
    began_at_s = boottime_s()
    os.close(take_lock(paths))
    at_s = locked_at_s(paths.daemon_lock)
    assert at_s is not None
    assert began_at_s - 0.001 <= at_s <= boottime_s() + 0.001
    paths.daemon_lock.write_text("17\n")
    assert locked_at_s(paths.daemon_lock) is None


def test_uptime_is_that_of_the_process(sleeper):
    uptime_s = process_uptime_s(sleeper.pid, boottime_s() + 100)
    assert uptime_s is not None
    assert 99 < uptime_s < 160
    assert process_uptime_s(2**22 + 1, boottime_s()) is None
