"""Rounds of looking at processes' sizes: whose limit counts, when a moment is quiet, and what is written and sent."""

import msgspec
import pytest

from aphrodited.config.schema import ApiConfig, EngineConfig
from aphrodited.health.memory import OVER_S
from aphrodited.health.memory_watch import MemoryWatch
from aphrodited.health.probes import Look
from aphrodited.page import Page, Phase
from aphrodited.supervision.deaths import last_verdict
from aphrodited.supervision.ledger import Verdict, stamp
from aphrodited.supervision.programs import programs

MIB = 1024**2


class Stage:
    """Processes of 200 MiB, each with the pid of its place; limits of 100 MiB where there is one."""

    def __init__(self, config):
        models = (msgspec.structs.replace(config.models[0], engine=EngineConfig(memory_soft_limit=100 * MIB), standby=1),)
        self.config = msgspec.structs.replace(config, models=(*models, config.models[1]))
        self.programs = {program.name: program for program in programs(self.config) if program.model or program.role == "api"}
        self.pages = {name: self.page(number) for number, name in enumerate(self.programs)}
        self.written, self.dismissed = [], []
        self.watch = MemoryWatch([], self.written.append, self.dismiss, lambda _pid: 200 * MIB)
        self.now_s = 0.0

    def page(self, pid, phase=Phase.READY, num_running=0):
        values = dict.fromkeys(("start_ticks", "generation", "num_ticks", "num_steps"), 1)
        return Page(
            pid=pid, phase=phase, has_work=False, num_finished=1, allowance_s=0, updated_at_s=0, num_running=num_running, **values
        )

    def dismiss(self, pid, start_ticks):
        self.dismissed.append(pid)
        return True

    def rounds(self, seconds):
        for _ in range(int(seconds)):
            self.now_s += 1
            looks = {program: Look(None, self.pages[name], None) for name, program in self.programs.items()}
            self.watch.look(looks, self.config, self.now_s)

    def engine(self, number):
        return [name for name, program in self.programs.items() if program.model == "demo"][number]


@pytest.fixture
def stage(config):
    return Stage(config)


def test_an_idle_process_above_its_limit_is_told_asked_to_leave_and_written_down(stage):
    stage.pages[stage.engine(1)] = None
    stage.rounds(OVER_S + 3)
    name = stage.engine(0)
    assert stage.dismissed == [stage.pages[name].pid]
    assert [(entry.program, entry.verdict, entry.action) for entry in stage.written] == [
        (name, "memory", "exceeded"),
        (name, "memory", "restart"),
    ]
    assert "200MiB resident, memory_soft_limit is 100MiB" in stage.written[0].reason


def test_a_busy_engine_is_left_alone_unless_a_standby_waits(stage):
    stage.pages = {name: stage.page(page.pid, num_running=1) for name, page in stage.pages.items()}
    stage.rounds(20)
    assert stage.dismissed == []
    stage.pages[stage.engine(1)] = stage.page(99, Phase.STANDBY)
    stage.rounds(1)
    assert stage.dismissed == [stage.pages[stage.engine(0)].pid]


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.LOADING, Phase.DRAINING, Phase.FAILED])
def test_a_process_that_comes_up_or_leaves_is_not_judged(stage, phase):
    stage.pages = {name: stage.page(page.pid, phase) for name, page in stage.pages.items()}
    stage.rounds(20)
    assert stage.written == []


def test_api_workers_have_a_limit_of_their_own_and_take_it_from_a_reload(stage):
    stage.rounds(20)
    assert {entry.program for entry in stage.written} == {stage.engine(0), stage.engine(1)}
    stage.config = msgspec.structs.replace(stage.config, api=ApiConfig(workers=1, memory_soft_limit=150 * MIB))
    stage.rounds(60)
    assert "api-0" in {entry.program for entry in stage.written}


def test_a_monitor_remembers_what_the_one_before_restarted(stage):
    stage.rounds(20)
    restarts = len(stage.dismissed)
    stage.watch = MemoryWatch(stage.written, stage.written.append, stage.dismiss, lambda _pid: 200 * MIB)
    stage.now_s = 0.0
    stage.rounds(25)
    assert len(stage.dismissed) == restarts


def test_only_a_restart_for_memory_is_the_reason_of_a_death():
    def verdict(action, kind="memory"):
        return Verdict(**stamp("p"), pid=7, verdict=kind, action=action, reason="large")

    assert last_verdict([verdict("exceeded")], "p", 7) is None
    assert last_verdict([verdict("exceeded"), verdict("restart")], "p", 7).verdict == "memory"
    assert last_verdict([verdict("kill", "hang"), verdict("exceeded")], "p", 7).verdict == "hang"
