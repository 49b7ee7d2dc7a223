import pytest

from aphrodited.config.schema import ApiConfig, Config, ModelConfig
from aphrodited.page import Page, Phase
from aphrodited.supervision.herald import EXTENSION_PERIOD_S, Herald
from aphrodited.supervision.program_state import LaunchState, ProgramState
from aphrodited.supervision.programs import programs
from aphrodited.supervision.readiness import Sight, judge

CONFIG = Config(models=(ModelConfig("m", "p"),), api=ApiConfig(port=4711, workers=1, keys_file="/keys"))
MONITOR, ENGINE, API = programs(CONFIG)


class FakeManager:
    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *arguments: self.told.append((name, *arguments))


class Stage:
    """A herald, whom it speaks to, and a clock."""

    def __init__(self):
        self.now_s = 0.0
        self.said = []
        self.manager = FakeManager()
        self.herald = Herald(CONFIG, self.manager, self.said.append, lambda: self.now_s)

    def look(self, **sights):
        named = {{"engine": ENGINE, "api": API}[role].name: seen for role, seen in sights.items()}
        self.herald.tell(judge([MONITOR, ENGINE, API], named), named)


@pytest.fixture
def stage():
    return Stage()


def sight(phase=Phase.READY, num_ticks=1, pid=7):
    page = Page(pid, 0, 1, phase, False, num_ticks, 0, 0, 0.0, 0.0)
    return Sight(pid, page, ProgramState("p", pid, LaunchState.RUNNING, 0.0))


def held(state):
    return Sight(7, None, ProgramState("p", 7, state, 0.0, "no such file"))


def test_ready_is_said_once_with_a_line_to_try(stage):
    for _ in range(3):
        stage.look(engine=sight(), api=sight())
    assert [told[0] for told in stage.manager.told] == ["ready", "status", "status"]
    (line,) = stage.said
    assert line.startswith("ready on http://127.0.0.1:4711: m serves")
    assert "Bearer YOUR_KEY" in line
    assert '"model": "m"' in line


def test_what_comes_back_later_is_said(stage):
    stage.look(engine=sight(), api=sight())
    stage.look(api=sight())
    stage.look(engine=sight(pid=8), api=sight())
    assert stage.said[1:] == ["the engine of m is ready (pid 8)"]


def test_a_parked_model_is_said_with_its_reason(stage):
    stage.look(engine=held(LaunchState.PARKED), api=sight())
    assert stage.said == [
        "the engine of m is parked: no such file",
        "listening on http://127.0.0.1:4711, but no model serves: m is parked: no such file",
    ]


def test_a_start_that_progresses_is_given_more_time_and_one_that_stands_still_is_not(stage):
    for num_ticks in range(10):
        stage.now_s += EXTENSION_PERIOD_S / 2
        stage.look(engine=sight(Phase.LOADING, num_ticks))
    assert [told[0] for told in stage.manager.told].count("extend_timeout") == 5
    stage.manager.told.clear()
    for _ in range(10):
        stage.now_s += EXTENSION_PERIOD_S
        stage.look(engine=sight(Phase.LOADING, 9))
    assert "extend_timeout" not in [told[0] for told in stage.manager.told]


def test_waiting_for_a_turn_counts_as_progress(stage):
    for _ in range(2):
        stage.now_s += EXTENSION_PERIOD_S
        stage.look(engine=held(LaunchState.BACKOFF))
    assert [told[0] for told in stage.manager.told].count("extend_timeout") == 2


def test_stopping_says_how_long_it_may_take(stage):
    stage.herald.tell_stopping()
    assert "running requests get 30 s" in stage.said[0]
    assert [told[0] for told in stage.manager.told] == ["stopping", "extend_timeout"]
    assert stage.manager.told[1][1] > 50
