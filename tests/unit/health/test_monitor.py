"""Rounds of the monitor over pages that the test writes, on a clock that it moves, without signals."""

import os
import signal

import msgspec
import pytest

from aphrodited.flight import FlightRecorder
from aphrodited.health.monitor import Monitor
from aphrodited.health.states import Action
from aphrodited.mq.messages import EngineEvent, EventKind
from aphrodited.page import Phase
from aphrodited.paths import api_program, engine_program
from aphrodited.procfs import process_state
from aphrodited.rulings import read_rulings
from aphrodited.supervision.ledger import Conviction, Death, Ledger, Ready, Verdict, boottime_s, stamp
from aphrodited.supervision.program_state import LaunchState, ProgramState, write_program_state
from tests.support.daemons import wait_until

ENGINE = engine_program("demo", 0)


class Stage:
    def __init__(self, config, paths):
        self.config, self.paths = config, paths
        self.now_s = 1000.0
        self.events: list[EngineEvent] = []
        self.sent: list[tuple[Action, int]] = []
        self.monitor = self.new_monitor()

    def new_monitor(self):
        return Monitor(self.config, self.paths, self.events.append, clock=lambda: self.now_s, enforce=self.enforce)

    def enforce(self, action, pid, start_ticks):
        self.sent.append((action, pid))
        return True

    def rounds(self, seconds, each=None):
        for _ in range(int(seconds / 0.5)):
            self.now_s += 0.5
            if each:
                each()
            self.monitor.look()

    def entries(self, kind):
        return [entry for entry in Ledger(self.paths.ledger).read() if isinstance(entry, kind)]


@pytest.fixture
def stage(config, paths):
    return Stage(config, paths)


def test_an_engine_that_serves_is_told_once_with_its_generation(stage, page_of, sleeper):
    page_of(ENGINE, sleeper.pid).update(phase=Phase.READY, generation=2)
    stage.rounds(2)
    assert stage.events == [EngineEvent(EventKind.ENGINE_READY, "demo", 2, sleeper.pid)]
    assert [(e.program, e.pid, e.generation) for e in stage.entries(Ready)] == [(ENGINE, sleeper.pid, 2)]


def test_a_new_monitor_does_not_tell_what_the_ledger_knows(stage, page_of, sleeper):
    page_of(ENGINE, sleeper.pid).update(phase=Phase.READY, generation=2)
    stage.rounds(1)
    stage.monitor = stage.new_monitor()
    stage.rounds(1)
    assert len(stage.events) == 1
    assert len(stage.entries(Ready)) == 1


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.LOADING, Phase.STANDBY, Phase.DRAINING, Phase.FAILED])
def test_an_engine_that_does_not_serve_is_not_told_ready(stage, page_of, sleeper, phase):
    page_of(ENGINE, sleeper.pid).update(phase=phase, generation=2)
    stage.rounds(1)
    assert stage.events == []


def test_a_hanging_engine_is_told_written_down_and_signalled_in_order(stage, page_of, sleeper):
    page_of(ENGINE, sleeper.pid).update(phase=Phase.STEPPING, has_work=True, num_steps=7)
    stage.rounds(60)
    actions = [Action.SUSPECT, Action.DUMP, Action.ABORT, Action.KILL, Action.UNKILLABLE]
    assert stage.sent == [(action, sleeper.pid) for action in actions]
    assert [verdict.action for verdict in stage.entries(Verdict)] == actions
    assert [(e.kind, e.model, e.pid) for e in stage.events] == [(EventKind.ENGINE_HANG, "demo", sleeper.pid)]
    assert "while stepping (step 7)" in stage.events[0].cause
    assert stage.monitor.model_views()["demo"].state == "unkillable"


def test_a_hanging_worker_is_judged_without_an_engine_event(stage, page_of, sleeper):
    page_of(api_program(0), sleeper.pid).update(phase=Phase.READY)
    stage.rounds(11)
    assert stage.sent[:2] == [(Action.SUSPECT, sleeper.pid), (Action.DUMP, sleeper.pid)]
    assert stage.events == []


def test_a_suspect_is_not_ready_and_is_again_when_it_moves(stage, page_of, sleeper):
    page = page_of(ENGINE, sleeper.pid)
    page.update(phase=Phase.READY, generation=1)
    stage.rounds(11)
    assert stage.monitor.model_views()["demo"].state == "suspect"
    stage.rounds(1, each=page.tick)
    assert stage.monitor.model_views()["demo"].state == "ready"
    assert stage.entries(Verdict)[-1].action == "cleared"


def test_an_engine_that_moves_is_left_alone_however_long(stage, page_of, sleeper):
    page = page_of(ENGINE, sleeper.pid)
    page.update(phase=Phase.STEPPING, has_work=True)
    stage.rounds(300, each=page.tick)
    assert stage.sent == []


def test_a_monitor_that_slept_judges_nobody_for_it(stage, page_of, sleeper):
    page_of(ENGINE, sleeper.pid).update(phase=Phase.STEPPING)
    stage.rounds(1)
    stage.now_s += 3600
    stage.rounds(8)
    assert stage.sent == []


def test_a_full_disk_does_not_stop_a_verdict(stage, page_of, sleeper, paths):
    paths.ledger.mkdir()
    page_of(ENGINE, sleeper.pid).update(phase=Phase.STEPPING)
    stage.rounds(25)
    assert stage.sent[-1] == (Action.KILL, sleeper.pid)


def test_a_death_is_told_with_its_cause(stage, paths):
    Ledger(paths.ledger).append(
        Death(**stamp(ENGINE), pid=42, uptime_s=3, code=70, generation=5, cause="step failed: boom", model="demo")
    )
    stage.rounds(1)
    assert stage.events == [EngineEvent(EventKind.ENGINE_DEAD, "demo", 5, 42, "step failed: boom")]


def test_the_death_of_a_worker_is_no_engine_event(stage, paths):
    Ledger(paths.ledger).append(Death(**stamp(api_program(0)), pid=42, uptime_s=3, signal="SIGKILL"))
    stage.rounds(1)
    assert stage.events == []


def test_a_parked_engine_is_told_once_with_its_reason(stage, paths, sleeper):
    parked = ProgramState(
        ENGINE, sleeper.pid, LaunchState.PARKED, boottime_s(), reason="damaged", next_try_at_s=boottime_s() + 300
    )
    write_program_state(paths.program_state(ENGINE), parked)
    stage.rounds(2)
    assert stage.events == [EngineEvent(EventKind.ENGINE_PARKED, "demo", 0, sleeper.pid, "damaged")]
    view = stage.monitor.model_views()["demo"]
    assert (view.state, view.reason) == ("parked", "damaged")
    assert view.next_try_in_s is not None
    again = msgspec.structs.replace(parked, since_s=parked.since_s + 300)
    write_program_state(paths.program_state(ENGINE), again)
    stage.rounds(1)
    assert len(stage.events) == 2


def test_models_without_any_process_are_stopped(stage):
    assert {view.state for view in stage.monitor.model_views().values()} == {"stopped"}


def test_pages_are_those_of_the_living(stage, page_of, sleeper):
    page_of(ENGINE, sleeper.pid)
    page_of(api_program(0), sleeper.pid).update(start_ticks=1)
    assert list(stage.monitor.pages()) == [ENGINE]


def test_the_monitor_judges_what_an_engine_computed_when_it_died(stage, paths):
    for generation in (1, 2):
        recorder = FlightRecorder(paths.flights_dir, ENGINE, generation, 4)
        recorder.begin([b"x" * 16], [5])
        recorder.close()
        Ledger(paths.ledger).append(
            Death(**stamp(ENGINE), pid=os.getpid(), uptime_s=3, code=70, generation=generation, model="demo")
        )
        stage.rounds(1)
    rulings = read_rulings(paths.model("demo").rulings)
    assert rulings is not None
    assert list(rulings.convicted) == [(b"x" * 16).hex()]
    assert [(entry.program, entry.fingerprint) for entry in stage.entries(Conviction)] == [(ENGINE, (b"x" * 16).hex())]


def test_a_process_that_somebody_stopped_is_judged_so(stage, page_of, sleeper):
    page_of(ENGINE, sleeper.pid).update(phase=Phase.STEPPING, has_work=True)
    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_until(lambda: process_state(sleeper.pid) == "T")
    stage.rounds(15)
    assert {verdict.stopped for verdict in stage.entries(Verdict)} == {True}
