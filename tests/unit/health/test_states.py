"""The state table: every combination of witnesses has one answer, and it is the one that was meant."""

from itertools import product

import pytest

from aphrodited.health.states import (
    ACTION_STATES,
    LAUNCH_STATES,
    PHASE_STATES,
    WITHOUT_PROCESS,
    Action,
    Standing,
    State,
    daemon_standing,
    model_state,
    nearest_to_serving,
    process_state,
)
from aphrodited.page import Phase
from aphrodited.supervision.desired import Desired
from aphrodited.supervision.program_state import LaunchState

STATENAMES = [*WITHOUT_PROCESS, "RUNNING", "STOPPING"]
ACTIONS = [None, *Action]
LAUNCHES = [None, *LaunchState]
PHASES = [None, *Phase]


def test_each_table_covers_every_member_of_its_set():
    assert set(ACTION_STATES) == set(Action)
    assert set(LAUNCH_STATES) == set(LaunchState)
    assert set(PHASE_STATES) == set(Phase)
    assert set(STATENAMES) == {
        "STOPPED", "STARTING", "RUNNING", "BACKOFF", "STOPPING", "EXITED", "FATAL", "UNKNOWN",
    }  # fmt: skip


def test_the_words_are_those_of_the_documentation():
    assert [str(state) for state in State] == [
        "starting", "loading", "standby", "ready", "suspect", "draining", "backoff", "parked", "stopping", "stopped",
        "unkillable", "unloaded",
    ]  # fmt: skip


@pytest.mark.parametrize("statename", sorted(WITHOUT_PROCESS))
def test_without_a_process_only_the_supervisor_counts(statename):
    for action, launch, phase in product(ACTIONS, LAUNCHES, PHASES):
        assert process_state(statename, action, launch, phase) is WITHOUT_PROCESS[statename]


def test_every_combination_of_a_running_process_has_the_first_witness_with_a_say():
    for action, launch, phase in product(ACTIONS, LAUNCHES, PHASES):
        said = [
            ACTION_STATES[action] if action else None,
            LAUNCH_STATES[launch] if launch else None,
            PHASE_STATES[phase] if phase is not None else State.STARTING,
        ]
        assert process_state("RUNNING", action, launch, phase) is next(state for state in said if state)


def test_a_stopping_process_is_draining_only_if_its_page_says_so():
    for action, launch, phase in product(ACTIONS, LAUNCHES, PHASES):
        state = process_state("STOPPING", action, launch, phase)
        if action is Action.UNKILLABLE:
            assert state is State.UNKILLABLE
        else:
            assert state is (State.DRAINING if phase is Phase.DRAINING else State.STOPPING)


@pytest.mark.parametrize(
    ("action", "launch", "phase", "state"),
    [
        (None, None, None, State.STARTING),
        (None, LaunchState.WAITING, None, State.STARTING),
        (None, LaunchState.BACKOFF, None, State.BACKOFF),
        (None, LaunchState.PARKED, None, State.PARKED),
        (None, LaunchState.RUNNING, None, State.STARTING),
        (None, LaunchState.RUNNING, Phase.LOADING, State.LOADING),
        (None, LaunchState.RUNNING, Phase.READY, State.READY),
        (None, LaunchState.RUNNING, Phase.STEPPING, State.READY),
        (None, LaunchState.RUNNING, Phase.DRAINING, State.DRAINING),
        (None, LaunchState.RUNNING, Phase.STANDBY, State.STANDBY),
        (Action.DUMP, LaunchState.RUNNING, Phase.STEPPING, State.SUSPECT),
        (Action.CLEARED, LaunchState.RUNNING, Phase.STEPPING, State.READY),
        (Action.UNKILLABLE, LaunchState.RUNNING, Phase.STEPPING, State.UNKILLABLE),
    ],
)
def test_a_running_process(action, launch, phase, state):
    assert process_state("RUNNING", action, launch, phase) is state


def test_a_model_is_as_near_to_serving_as_its_best_engine():
    def nearest(*engines):
        return nearest_to_serving(engines, lambda state: state)

    assert nearest(State.LOADING, State.READY) is State.READY
    assert nearest(State.STARTING, State.STANDBY) is State.STANDBY
    assert nearest(State.LOADING, State.STANDBY) is State.STANDBY
    for state in State:
        assert nearest(state) is state
        assert nearest(state, State.READY) is State.READY
        assert nearest(state, State.STOPPED) is state


@pytest.mark.parametrize(
    ("best", "desired", "state"),
    [
        (State.READY, Desired.SERVED, State.READY),
        (State.STOPPED, Desired.STOPPED, State.STOPPED),
        (State.READY, Desired.DRAINED, State.DRAINING),
        (State.STANDBY, Desired.DRAINED, State.DRAINING),
        (State.PARKED, Desired.DRAINED, State.PARKED),
        (State.READY, Desired.UNLOADED, State.DRAINING),
        (State.LOADING, Desired.UNLOADED, State.STOPPING),
        (State.STOPPED, Desired.UNLOADED, State.UNLOADED),
    ],
)
def test_what_is_wanted_of_a_model_shows_in_its_state(best, desired, state):
    assert model_state(best, desired) is state


@pytest.mark.parametrize(
    ("supervisor", "models", "others", "standing"),
    [
        (State.READY, [State.READY], [State.READY], Standing.READY),
        (State.READY, [State.READY], [State.STARTING], Standing.DEGRADED),
        (State.READY, [State.READY, State.PARKED], [State.READY], Standing.DEGRADED),
        (State.SUSPECT, [State.READY], [State.READY], Standing.DEGRADED),
        (State.READY, [State.LOADING], [State.READY], Standing.STARTING),
        (State.READY, [State.BACKOFF, State.PARKED], [State.READY], Standing.STARTING),
        (State.READY, [State.SUSPECT], [State.READY], Standing.STARTING),
        (State.READY, [State.PARKED], [State.READY], Standing.DOWN),
        (State.READY, [State.STOPPED], [State.READY], Standing.DOWN),
        (State.READY, [State.READY, State.UNLOADED], [State.READY], Standing.READY),
        (State.READY, [State.UNLOADED], [State.READY], Standing.READY),
        (State.READY, [State.UNLOADED], [State.STARTING], Standing.STARTING),
        (State.READY, [State.UNLOADED, State.PARKED], [State.READY], Standing.DOWN),
        (State.READY, [State.DRAINING], [State.READY], Standing.DEGRADED),
        (State.STOPPED, [State.STOPPED], [State.STOPPED], Standing.DOWN),
        (State.STOPPED, [State.READY], [State.READY], Standing.DOWN),
    ],
)
def test_the_standing_of_a_daemon(supervisor, models, others, standing):
    assert daemon_standing(supervisor, models, others) is standing
