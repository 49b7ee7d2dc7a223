"""Real processes: a standby takes a dead engine's place, the dead one comes back as the next standby, again and again."""

import os
import signal

import pytest

from aphrodited.cli.aphroditectl import main as aphroditectl
from aphrodited.mq.endpoints import read_current
from aphrodited.page import read_page
from aphrodited.supervision.ledger import Ready
from tests.support.daemons import is_alive, wait_until
from tests.support.real_daemon import MARKER, real_daemon

NUM_KILLS = 5
RAISE = 1

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def shared():
    with real_daemon(standby=1) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared):
    """One daemon for the whole module: each test begins with an engine that serves and one that waits."""
    wait_for_standby(shared)
    assert shared.complete()[0] == 200  # a finished request: no death is a strike
    return shared


def engines(daemon, state=None):
    return [p for p in daemon.status().processes if p.role == "engine" and state in (None, p.state)]


def engine_in(daemon, state):
    (engine,) = engines(daemon, state)
    return engine


def wait_for_standby(daemon, num=1):
    daemon.wait_serving()
    wait_until(lambda: len(engines(daemon, "standby")) == num, 40, "a standby")


def wait_for_takeover(daemon, standby):
    """The model is served by what was the standby; returns it as it is then."""
    wait_until(lambda: daemon.process_status(standby.name).state == "ready", what="the standby's promotion")
    promoted = daemon.process_status(standby.name)
    assert promoted.pid == standby.pid
    return promoted


def announced(daemon):
    current = read_current(daemon.paths.model("tiny"))
    return current.generation if current else None


def test_five_deaths_in_a_row_are_taken_over_by_the_standby_and_leave_nothing(daemon):
    held = None
    for _ in range(NUM_KILLS):
        active, standby = engine_in(daemon, "ready"), engine_in(daemon, "standby")
        assert (standby.generation, standby.num_finished) == (None, 0)
        streams = [daemon.open_stream() for _ in range(8)]
        wait_until(lambda streams=streams: all(s.num_events for s in streams), what="a token on every stream")
        os.kill(active.pid, signal.SIGKILL)
        for stream in streams:
            stream.wait()
            assert stream.error["code"] == "ENGINE_DEAD"
        assert daemon.complete()[0] == 200
        promoted = wait_for_takeover(daemon, standby)
        assert promoted.generation == active.generation + 1 == announced(daemon)
        waits = f"{standby.name} has just begun to serve"
        wait_until(lambda: daemon.process_status(active.name).reason == waits, what="the dead engine's turn")  # noqa: B023
        wait_for_standby(daemon)
        assert engine_in(daemon, "standby").name == active.name
        assert engine_in(daemon, "standby").last_exit.cause == "killed by SIGKILL while stepping"
        holds = (sorted(daemon.pids()), len(daemon.group_members()), daemon.runtime_files())
        files = daemon.open_files()
        if held is None:
            held, held_files = holds, files
        assert holds == held
        assert all(files[name] <= held_files[name] + 2 for name in ("api-0", "api-1", "monitor")), (files, held_files)
    generations = [entry.generation for entry in daemon.ledger.read() if isinstance(entry, Ready)]
    assert generations == sorted(set(generations))  # no two engines were ever ready in one generation
    model = daemon.status().models[0]
    assert (model.state, model.num_standby, len(model.engines)) == ("ready", 1, 2)


def test_the_death_of_the_standby_is_noticed_by_nobody(daemon):
    active, standby = engine_in(daemon, "ready"), engine_in(daemon, "standby")
    stream = daemon.open_stream()
    wait_until(lambda: stream.num_events, what="a first token")
    for _ in range(2):
        os.kill(standby.pid, signal.SIGKILL)
        wait_until(lambda pid=standby.pid: not is_alive(pid), what="the standby's end")
        assert daemon.get("/readyz")[0] == 200
        wait_for_standby(daemon)
        assert engine_in(daemon, "standby").pid != standby.pid
        standby = engine_in(daemon, "standby")
    count = stream.num_events
    wait_until(lambda: stream.num_events > count or stream.is_done, what="progress")
    assert stream.error is None
    stream.close()
    after = engine_in(daemon, "ready")
    assert (after.pid, after.generation) == (active.pid, active.generation)
    assert daemon.deaths(standby.name)[-1].standby


def test_a_step_that_raises_is_taken_over_too(daemon):
    active, standby = engine_in(daemon, "ready"), engine_in(daemon, "standby")
    stream = daemon.open_stream([MARKER, MARKER, RAISE, 3])
    stream.wait()
    assert "this step was asked to fail" in stream.error["message"]
    assert wait_for_takeover(daemon, standby).generation == active.generation + 1
    assert daemon.complete()[0] == 200


def test_a_stopped_engine_is_taken_over_when_it_has_been_killed_and_not_before(daemon):
    active, standby = engine_in(daemon, "ready"), engine_in(daemon, "standby")
    os.kill(active.pid, signal.SIGSTOP)
    generation = active.generation
    while is_alive(active.pid):
        if read_page(daemon.paths.page(standby.name)).generation and is_alive(active.pid):
            raise AssertionError("two engines at once")
        assert announced(daemon) in (generation, generation + 1)
    assert wait_for_takeover(daemon, standby).generation == generation + 1
    assert daemon.complete()[0] == 200
    wait_for_standby(daemon)
    assert "process state T" in daemon.process_status(active.name).last_exit.cause


def test_when_both_are_killed_one_serves_again_and_the_other_waits(daemon):
    active, standby = engine_in(daemon, "ready"), engine_in(daemon, "standby")
    for engine in (standby, active):
        os.kill(engine.pid, signal.SIGKILL)
    wait_until(lambda: daemon.complete()[0] == 200, what="an answer")  # the first one may meet the dying engine
    wait_for_standby(daemon)
    assert {engine.pid for engine in engines(daemon)}.isdisjoint({active.pid, standby.pid})
    assert engine_in(daemon, "ready").generation == active.generation + 1


def test_a_stopped_model_stays_stopped_and_starts_with_a_standby(daemon, capsys):
    active, standby = engine_in(daemon, "ready"), engine_in(daemon, "standby")
    assert aphroditectl(["--config", str(daemon.config), "stop", "tiny"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{standby.name} stopped", f"{active.name} stopped"]
    assert {engine.state for engine in engines(daemon)} == {"stopped"}
    assert announced(daemon) is None
    assert daemon.status().models[0].state == "stopped"
    assert aphroditectl(["--config", str(daemon.config), "start", "tiny"]) == 0
    wait_for_standby(daemon)
    assert engine_in(daemon, "ready").generation == active.generation + 1
    assert daemon.complete()[0] == 200


def test_stopping_the_active_engine_alone_hands_its_model_over(daemon):
    active, standby = engine_in(daemon, "ready"), engine_in(daemon, "standby")
    assert aphroditectl(["--config", str(daemon.config), "stop", active.name]) == 0
    assert wait_for_takeover(daemon, standby).generation == active.generation + 1
    assert daemon.complete()[0] == 200
    assert aphroditectl(["--config", str(daemon.config), "start", active.name]) == 0
    wait_for_standby(daemon)
    assert engine_in(daemon, "standby").name == active.name


def test_a_restart_of_the_model_replaces_both_engines_and_always_keeps_one(daemon):
    active, standby = engine_in(daemon, "ready"), engine_in(daemon, "standby")
    assert aphroditectl(["--config", str(daemon.config), "restart", "tiny"]) == 0
    assert daemon.complete()[0] == 200
    wait_for_standby(daemon)
    assert {engine.pid for engine in engines(daemon)}.isdisjoint({active.pid, standby.pid})
    assert engine_in(daemon, "ready").name == standby.name  # it was loaded first, and took over
    assert engine_in(daemon, "ready").generation == active.generation + 1


def test_a_model_that_cannot_be_loaded_parks_both_its_engines_and_the_other_model_serves(tmp_path):
    with real_daemon(standby=1, embedded={"missing": tmp_path / "missing.gguf"}, wait=False) as daemon:

        def states(model):
            return sorted(p.state for p in daemon.status().processes if p.model == model)

        wait_until(lambda: states("missing") == ["parked"] * 2, 90, "the end of every try")
        wait_until(lambda: states("tiny") == ["ready", "standby"], 40, "the other model")
        assert daemon.complete()[0] == 200
        assert "missing.gguf" in daemon.status().models[1].reason
        assert daemon.terminate() == 0
