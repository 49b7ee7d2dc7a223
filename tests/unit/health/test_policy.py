"""Hang verdicts on a clock that the test moves."""

from itertools import product

import msgspec
import pytest

from aphrodited.config.schema import RecoveryConfig
from aphrodited.health.policy import LADDER, ObservedClock, ProgressWatch, Seen, pause_s, standstill_limit_s
from aphrodited.health.states import Action
from aphrodited.page import Page, Phase
from aphrodited.supervision.programs import Role

RECOVERY = RecoveryConfig(hang_min_s=10, load_stall_s=120, loop_hang_s=8, ladder_step_s=5)


def page_of(phase=Phase.STEPPING, *, num_ticks=1, allowance_s=0.0, pid=100, start_ticks=7):
    return Page(
        pid=pid,
        start_ticks=start_ticks,
        generation=1,
        phase=phase,
        has_work=phase is Phase.STEPPING,
        num_ticks=num_ticks,
        num_steps=3,
        num_finished=0,
        allowance_s=allowance_s,
        updated_at_s=0.0,
    )


class Observation:
    """One process whose page the test moves or leaves alone, looked at each half second."""

    def __init__(self, page, role=Role.ENGINE, is_stopped=False):
        self.page = page
        self.is_stopped = is_stopped
        self.now_s = 0.0
        self.watch = ProgressWatch(role, page, moved_at_s=0.0)
        self.actions: list[tuple[float, Action]] = []

    def wait(self, seconds, *, tick_every_s=None):
        end_s = self.now_s + seconds
        next_tick_s = self.now_s + (tick_every_s or 0)
        while self.now_s < end_s:
            self.now_s += 0.5
            if tick_every_s and self.now_s >= next_tick_s:
                next_tick_s += tick_every_s
                self.page = msgspec.structs.replace(self.page, num_ticks=self.page.num_ticks + 1)
            for action in self.watch.look(self.page, self.is_stopped, self.now_s, RECOVERY):
                self.actions.append((self.now_s, action))
        return self.actions


def test_the_ladder_has_a_line_for_every_rung_and_every_look():
    rungs = [None, *(action for action in Action if action is not Action.CLEARED)]
    assert set(LADDER) == set(product(rungs, Seen))


@pytest.mark.parametrize(("rung", "seen"), sorted(LADDER, key=str))
def test_no_line_of_the_ladder_leads_down_but_by_being_cleared_before_the_abort(rung, seen):
    order = [None, Action.SUSPECT, Action.DUMP, Action.ABORT, Action.KILL, Action.UNKILLABLE]
    following = LADDER[rung, seen]
    if following is Action.CLEARED:
        assert seen is Seen.MOVED
        assert rung in (Action.SUSPECT, Action.DUMP)
    else:
        assert order.index(following) >= order.index(rung)


def test_a_stuck_step_is_suspected_dumped_aborted_killed_and_at_last_called_unkillable():
    process = Observation(page_of(Phase.STEPPING))
    assert process.wait(9.5) == []
    assert process.wait(60) == [
        (10.0, Action.SUSPECT),
        (10.0, Action.DUMP),
        (15.0, Action.ABORT),
        (20.0, Action.KILL),
        (50.0, Action.UNKILLABLE),
    ]


def test_a_step_may_stand_still_for_as_long_as_its_page_claims():
    process = Observation(page_of(Phase.STEPPING, allowance_s=60))
    assert process.wait(59.5) == []
    assert process.wait(1)[0] == (60.0, Action.SUSPECT)


def test_an_allowance_below_the_configured_minimum_does_not_count():
    process = Observation(page_of(Phase.STEPPING, allowance_s=0.1))
    assert process.wait(9.5) == []


def test_a_slow_step_that_ticks_is_never_judged():
    process = Observation(page_of(Phase.STEPPING))
    assert process.wait(3600, tick_every_s=9) == []


def test_an_idle_engine_must_tick_too():
    process = Observation(page_of(Phase.READY))
    assert process.wait(100, tick_every_s=1) == []
    process.wait(10.5)
    assert [action for _, action in process.actions] == [Action.SUSPECT, Action.DUMP]


def test_loading_is_judged_by_its_progress_alone():
    process = Observation(page_of(Phase.LOADING))
    assert process.wait(1000, tick_every_s=100) == []
    process.wait(120)
    assert process.actions[0][1] is Action.SUSPECT


def test_an_event_loop_has_its_own_limit():
    process = Observation(page_of(Phase.READY), role=Role.API)
    assert process.wait(7.5) == []
    assert process.wait(1)[0] == (8.0, Action.SUSPECT)


def test_a_stopped_process_is_killed_at_once_when_its_time_is_over():
    process = Observation(page_of(Phase.READY), is_stopped=True)
    assert process.wait(11) == [(10.0, Action.SUSPECT), (10.0, Action.KILL)]


def test_a_stopped_process_that_loads_makes_no_progress_and_is_not_waited_for():
    process = Observation(page_of(Phase.LOADING), is_stopped=True)
    assert process.wait(20) == [(10.0, Action.SUSPECT), (10.0, Action.KILL)]
    assert "allowed are 10.0 s" in process.watch.reason(10.0, RECOVERY, "T")


def test_a_process_that_is_stopped_while_on_the_ladder_is_killed_at_once():
    process = Observation(page_of(Phase.STEPPING))
    process.wait(11)
    process.is_stopped = True
    assert process.wait(0.5)[-1] == (11.5, Action.KILL)


def test_a_suspect_that_moves_again_is_cleared_and_judged_anew():
    process = Observation(page_of(Phase.STEPPING))
    process.wait(12)
    process.wait(1, tick_every_s=0.5)
    assert process.actions[-1] == (12.5, Action.CLEARED)
    before = len(process.actions)
    process.wait(9.5)
    assert len(process.actions) == before
    process.wait(1)
    assert process.actions[before] == (23.0, Action.SUSPECT)


def test_after_the_abort_there_is_no_way_back():
    process = Observation(page_of(Phase.STEPPING))
    process.wait(15)
    assert process.actions[-1][1] is Action.ABORT
    process.wait(3, tick_every_s=0.5)
    assert process.actions[-1][1] is Action.ABORT
    process.wait(5)
    assert process.actions[-1][1] is Action.KILL


def test_time_in_which_the_monitor_did_not_look_is_held_against_nobody():
    clock = ObservedClock(max_gap_s=1.0)
    assert clock.look(1000.0) == 0
    assert clock.look(1000.5) == 0
    assert clock.look(1060.5) == 59.0
    assert clock.now_s == 1.5


def test_a_page_of_another_life_is_not_the_watched_one():
    watch = ProgressWatch(Role.ENGINE, page_of(), 0.0)
    assert watch.is_of(page_of(num_ticks=99))
    assert not watch.is_of(page_of(pid=101))
    assert not watch.is_of(page_of(start_ticks=8))


@pytest.mark.parametrize("role", [Role.ENGINE, Role.API])
@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_a_limit_of_at_least_the_configured_one(role, phase):
    limit_s = standstill_limit_s(role, page_of(phase), RECOVERY)
    if phase in (Phase.STARTING, Phase.LOADING):
        assert limit_s == 120
    elif phase in (Phase.DRAINING, Phase.FAILED):
        assert limit_s == 15
    else:
        assert limit_s == (10 if role is Role.ENGINE else 8)


def test_pauses_follow_the_configured_step():
    assert pause_s(None, Seen.STILL, 10, 5) == 10
    assert pause_s(Action.SUSPECT, Seen.STILL, 10, 5) == 0
    assert pause_s(Action.DUMP, Seen.STILL, 10, 5) == 5
    assert pause_s(Action.DUMP, Seen.STOPPED, 10, 5) == 0
    assert pause_s(Action.ABORT, Seen.STILL, 10, 5) == 5
    assert pause_s(Action.KILL, Seen.STOPPED, 10, 5) == 30


def test_the_reason_of_a_failed_process_keeps_its_own_words():
    process = Observation(msgspec.structs.replace(page_of(Phase.FAILED), message="weights are damaged"))
    process.wait(15)
    assert process.actions[0] == (15.0, Action.SUSPECT)
    assert "while failed (weights are damaged)" in process.watch.reason(process.now_s, RECOVERY, "R")


def test_the_reason_names_time_phase_limit_and_state():
    process = Observation(page_of(Phase.STEPPING))
    process.wait(10)
    reason = process.watch.reason(process.now_s, RECOVERY, "R")
    assert "10.0 s while stepping (step 3)" in reason
    assert "process state R" in reason
