"""Every key that is marked `hot` is proved to be: its reader is shown a replaced effective.json and goes by it."""

import logging
import os

import pytest

from aphrodited.config.loader import write_effective
from aphrodited.config.reference import sections
from aphrodited.config.schema import (
    ApiConfig,
    Apply,
    Config,
    EngineConfig,
    LoggingConfig,
    ModelConfig,
    PathsConfig,
    RecoveryConfig,
)
from aphrodited.health.monitor import Monitor
from aphrodited.health.states import Action
from aphrodited.log import set_level
from aphrodited.page import PageWriter, Phase
from aphrodited.paths import DaemonPaths, api_program, engine_program
from aphrodited.procfs import process_start_ticks, resident_bytes
from aphrodited.supervision.launcher import wait_for_turn
from aphrodited.supervision.ledger import Death, Verdict, boottime_s, stamp
from aphrodited.supervision.program_state import LaunchState
from aphrodited.workers import monitor as monitor_worker
from aphrodited.workers.live_config import follow_config
from tests.support.daemons import wait_until

ENGINE, WORKER = engine_program("m", 0), api_program(0)


class Stage:
    """A daemon's directories with a configuration that a test replaces."""

    def __init__(self, folder):
        self.paths = DaemonPaths(folder / "run", folder / "log", folder / "state")
        for path in (self.paths.runtime_dir, self.paths.log_dir, self.paths.state_dir):
            path.mkdir()
        self.config = self.reload()

    def reload(self, **sections):
        paths = PathsConfig(str(self.paths.runtime_dir), str(self.paths.log_dir), str(self.paths.state_dir))
        config = Config(**{"models": (ModelConfig("m", "p", standby=0),), "paths": paths, **sections})
        write_effective(config, self.paths.effective_config)
        return config

    def monitor(self):
        """A monitor that follows the file as its process does, on a clock that `rounds` moves."""
        now = [0.0]
        actions = []
        made = Monitor(
            self.config,
            self.paths,
            lambda _event: None,
            clock=lambda: now[0],
            enforce=lambda action, _pid, _ticks: actions.append(action) or True,
            dismiss=lambda _pid, _ticks: True,
        )
        follow_config(self.paths.effective_config, lambda config: monitor_worker._take(config, made))

        def rounds(seconds):
            for _ in range(int(seconds)):
                now[0] += 1
                made.look()

        return made, rounds, actions

    def page(self, program, **values):
        page = PageWriter(self.paths.page(program))
        page.update(pid=os.getpid(), start_ticks=process_start_ticks(os.getpid()), **values)
        return page


@pytest.fixture
def stage(tmp_path):
    yield Stage(tmp_path)
    set_level("info")


def decisions(stage, monkeypatch, changed, deaths):
    """What a launcher that knows the old policy decides before and after the file holds another one."""
    monitor, _, _ = stage.monitor()
    for fields in deaths:
        monitor.ledger.append(Death(**stamp(ENGINE), pid=1, uptime_s=1.0, model="m", **fields))
    monkeypatch.setattr("aphrodited.supervision.launcher.wait_for_signal", lambda _timeout_s: True)  # wait no further
    before = wait_for_turn(stage.paths, stage.config, ENGINE)
    stage.reload(recovery=changed)
    return before, wait_for_turn(stage.paths, stage.config, ENGINE)


def prove_max_strikes(stage, monkeypatch):
    strikes = [{"code": 70}] * 3
    before, after = decisions(stage, monkeypatch, RecoveryConfig(max_strikes=9), strikes)
    assert (before.state, after.state) == (LaunchState.PARKED, LaunchState.BACKOFF)


def prove_max_deaths(stage, monkeypatch):
    deaths = [{"signal": "SIGKILL", "num_finished": 1}] * 4
    before, after = decisions(stage, monkeypatch, RecoveryConfig(max_deaths=4), deaths)
    assert (before.state, after.state) == (LaunchState.RUNNING, LaunchState.PARKED)


def prove_strike_delay(stage, monkeypatch):
    before, after = decisions(stage, monkeypatch, RecoveryConfig(strike_delay_s=40), [{"code": 70}])
    assert before.delay_s < 2
    assert after.delay_s > 20


def prove_probe_minutes(stage, monkeypatch):
    before, after = decisions(stage, monkeypatch, RecoveryConfig(probe_minutes=(1,)), [{"code": 78}])
    assert before.next_try_at_s - boottime_s() > 200
    assert after.next_try_at_s - boottime_s() < 61


def prove_standstill(stage, monkeypatch, program, phase, recovery):
    monitor, rounds, actions = stage.monitor()
    stage.page(program, phase=phase)
    rounds(8)
    assert actions == []
    stage.config = stage.reload(recovery=recovery)
    wait_until(lambda: monitor.config == stage.config)
    rounds(1)
    assert actions[0] is Action.SUSPECT


def prove_load_stall(stage, monkeypatch):
    prove_standstill(stage, monkeypatch, ENGINE, Phase.LOADING, RecoveryConfig(load_stall_s=5))


def prove_loop_hang(stage, monkeypatch):
    prove_standstill(stage, monkeypatch, WORKER, Phase.READY, RecoveryConfig(loop_hang_s=2))


def prove_ladder_step(stage, monkeypatch):
    monitor, rounds, actions = stage.monitor()
    stage.page(WORKER, phase=Phase.READY)
    rounds(12)
    assert actions == [Action.SUSPECT, Action.DUMP]
    stage.config = stage.reload(recovery=RecoveryConfig(ladder_step_s=0.1))
    wait_until(lambda: monitor.config == stage.config)
    rounds(1)
    assert actions[-1] is Action.ABORT


def prove_soft_limit(stage, monkeypatch, program, **sections):
    monitor, rounds, _ = stage.monitor()
    page = stage.page(program, phase=Phase.READY, num_finished=1)
    stage.config = stage.reload(**sections)
    wait_until(lambda: monitor.config == stage.config)
    for _ in range(6):
        page.tick()
        rounds(1)
    verdict = next(entry for entry in monitor.ledger.read() if isinstance(entry, Verdict))
    assert (verdict.program, verdict.verdict) == (program, "memory")


def prove_engine_limit(stage, monkeypatch):
    engine = EngineConfig(memory_soft_limit=resident_bytes(os.getpid()) // 2)
    prove_soft_limit(stage, monkeypatch, ENGINE, models=(ModelConfig("m", "p", standby=0, engine=engine),))


def prove_api_limit(stage, monkeypatch):
    prove_soft_limit(stage, monkeypatch, WORKER, api=ApiConfig(memory_soft_limit=resident_bytes(os.getpid()) // 2))


def prove_level(stage, monkeypatch):
    """As engines and API workers follow it; for the monitor see workers.monitor._take."""
    follow_config(stage.paths.effective_config, lambda config: set_level(config.logging.level))
    stage.reload(logging=LoggingConfig("debug"))
    wait_until(lambda: logging.getLogger().level == logging.DEBUG)


PROOFS = {
    "models[].engine.memory_soft_limit": prove_engine_limit,
    "api.memory_soft_limit": prove_api_limit,
    "recovery.load_stall_s": prove_load_stall,
    "recovery.loop_hang_s": prove_loop_hang,
    "recovery.ladder_step_s": prove_ladder_step,
    "recovery.max_strikes": prove_max_strikes,
    "recovery.max_deaths": prove_max_deaths,
    "recovery.strike_delay_s": prove_strike_delay,
    "recovery.probe_minutes": prove_probe_minutes,
    "logging.level": prove_level,
}


def test_every_hot_key_has_a_proof():
    hot = {f"{s.path}.{e.name}" for s in sections() for e in s.entries if e.leaf.extra["apply"] == Apply.HOT}
    assert hot == set(PROOFS)


@pytest.mark.parametrize("key", PROOFS)
def test_a_hot_key_is_applied_without_a_restart(stage, monkeypatch, key):
    PROOFS[key](stage, monkeypatch)
