import pytest

from aphrodited.config.schema import ApiConfig, Config, ModelConfig
from aphrodited.page import Page, Phase
from aphrodited.supervision.program_state import LaunchState, ProgramState
from aphrodited.supervision.programs import programs
from aphrodited.supervision.readiness import Condition, Sight, condition_of, judge

CONFIG = Config(models=(ModelConfig("a", "a"), ModelConfig("b", "b")), api=ApiConfig(workers=2))
PROGRAMS = programs(CONFIG)
MONITOR, ENGINE_A, ENGINE_B, API_0, API_1 = [program.name for program in PROGRAMS]


def in_phase(phase, progress=0.0):
    page = Page(1, 0, 1, phase, False, 1, 0, 0, 0.0, 0.0, progress=progress)
    return Sight(1, page, ProgramState("p", 1, LaunchState.RUNNING, 0.0))


def held(state, reason="no such file"):
    return Sight(1, None, ProgramState("p", 1, state, 0.0, reason))


READY, PARKED = in_phase(Phase.READY), held(LaunchState.PARKED)
ALL = {MONITOR: READY, ENGINE_A: READY, ENGINE_B: READY, API_0: READY, API_1: READY}


@pytest.mark.parametrize(
    ("sight", "condition"),
    [
        (None, Condition.DOWN),
        (Sight(1), Condition.STARTING),
        (in_phase(Phase.LOADING), Condition.STARTING),
        (in_phase(Phase.STEPPING), Condition.READY),
        (in_phase(Phase.DRAINING), Condition.STARTING),
        (in_phase(Phase.STANDBY), Condition.STANDBY),
        (held(LaunchState.BACKOFF), Condition.WAITING),
        (held(LaunchState.PARKED), Condition.PARKED),
        (held(LaunchState.WAITING), Condition.STARTING),
    ],
)
def test_the_condition_of_a_program(sight, condition):
    assert condition_of(sight) is condition


@pytest.mark.parametrize(
    ("unloaded", "is_ready", "text"),
    [
        ((), False, "a serves; b is down"),
        (("b",), True, "a serves; b is unloaded"),
        (("a", "b"), True, "a is unloaded; b is unloaded"),
    ],
)
def test_nobody_waits_for_an_unloaded_model(unloaded, is_ready, text):
    readiness = judge(PROGRAMS, {name: sight for name, sight in ALL.items() if name != ENGINE_B}, unloaded)
    assert (readiness.is_ready, readiness.text) == (is_ready, text)


@pytest.mark.parametrize(
    ("changes", "is_ready", "text"),
    [
        ({}, True, "a serves; b serves"),
        ({MONITOR: None}, True, "a serves; b serves"),
        ({ENGINE_B: PARKED}, True, "a serves; b is parked: no such file"),
        ({ENGINE_A: PARKED, ENGINE_B: PARKED}, True, "a is parked: no such file; b is parked: no such file"),
        ({ENGINE_B: in_phase(Phase.LOADING, 0.41)}, False, "a serves; b loads, 41%"),
        ({ENGINE_B: None}, False, "a serves; b is down"),
        ({ENGINE_B: held(LaunchState.BACKOFF, "died")}, False, "a serves; b is waiting to start: died"),
        ({API_1: in_phase(Phase.STARTING)}, False, "a serves; b serves; 1 of 2 API workers ready"),
        ({API_1: PARKED}, True, "a serves; b serves"),
        ({API_0: PARKED, API_1: PARKED}, False, "a serves; b serves; 0 of 2 API workers ready"),
    ],
)
def test_the_daemon_is_ready_when_every_model_is_settled_and_the_api_is_up(changes, is_ready, text):
    sights = {name: sight for name, sight in {**ALL, **changes}.items() if sight is not None}
    readiness = judge(PROGRAMS, sights)
    assert (readiness.is_ready, readiness.text) == (is_ready, text)


@pytest.mark.parametrize(
    ("first", "second", "is_ready", "text"),
    [
        (READY, in_phase(Phase.STANDBY), True, "a serves"),
        (in_phase(Phase.STANDBY), READY, True, "a serves"),
        (READY, held(LaunchState.WAITING), True, "a serves"),
        (None, in_phase(Phase.STANDBY), False, "a changes over to its standby"),
        (held(LaunchState.WAITING), in_phase(Phase.LOADING, 0.5), False, "a loads, 50%"),
        (PARKED, in_phase(Phase.LOADING, 0.5), False, "a loads, 50%"),
        (PARKED, PARKED, True, "a is parked: no such file"),
    ],
)
def test_the_engine_nearest_to_serving_speaks_for_its_model(first, second, is_ready, text):
    known = programs(Config(models=(ModelConfig("a", "a", standby=1),), api=ApiConfig(workers=1)))
    said = {known[0].name: READY, known[1].name: first, known[2].name: second, known[3].name: READY}
    readiness = judge(known, {name: sight for name, sight in said.items() if sight is not None})
    assert (readiness.is_ready, readiness.text) == (is_ready, text)
