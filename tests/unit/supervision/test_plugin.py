"""Faults inside the plugin: whatever goes wrong in it, Supervisor's loop and events go on."""

import os
import shutil
import signal
from types import SimpleNamespace

import msgspec
import pytest
from supervisor import events
from supervisor.medusa import asyncore_25 as asyncore
from supervisor.states import ProcessStates, SupervisorStates

from aphrodited.config.loader import write_effective
from aphrodited.config.schema import Config, ModelConfig, PathsConfig, RecoveryConfig
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.plugin import FATAL_PAUSE_S, HOLD_S, Plugin
from aphrodited.supervision.program_state import LaunchState, ProgramState, write_program_state
from aphrodited.supervision.programs import programs
from aphrodited.supervision.sd_notify import ServiceManager
from aphrodited.supervision.standstill import StandstillWatch

CONFIG = Config(models=(ModelConfig("m", "p"),))
NO_SUCH_PID = 2**22 - 3


class FakeClock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


class FakeProcess:
    """As much of Supervisor's Subprocess as the plugin may touch."""

    def __init__(self, name):
        self.config = SimpleNamespace(name=name, autorestart=True, stopwaitsecs=0)
        self.pid = 0
        self.state = ProcessStates.RUNNING
        self.spawnerr = "fork failed"
        self.group = None
        self.backoff = 0
        self.num_spawns = 0

    def get_state(self):
        return self.state

    def spawn(self):
        self.num_spawns += 1


class FakeSupervisor:
    """As much of Supervisor's supervisord object as the plugin may touch."""

    def __init__(self):
        self.logged = []
        logger = SimpleNamespace(critical=self.logged.append)
        self.options = SimpleNamespace(
            logger=logger,
            mood=SupervisorStates.RUNNING,
            pidhistory={},
            waitpid=lambda: (None, None),
            signal_receiver=SimpleNamespace(_signals_recvd=[signal.SIGHUP, signal.SIGCHLD]),
        )
        processes = {program.name: FakeProcess(program.name) for program in programs(CONFIG)}
        self.process_groups = {"all": SimpleNamespace(processes=processes)}

    def process(self, name):
        return self.process_groups["all"].processes[name]


@pytest.fixture(autouse=True)
def _clean_globals():
    """Supervisor keeps its callbacks and sockets in module globals."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)}
    yield
    events.clear()
    asyncore.socket_map.clear()
    signal.set_wakeup_fd(-1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def paths(tmp_path):
    paths = DaemonPaths(tmp_path / "run", tmp_path / "log", tmp_path / "state")
    paths.runtime_dir.mkdir()
    return paths


@pytest.fixture
def made(paths):
    supervisor, said, clock = FakeSupervisor(), [], FakeClock()
    plugin = Plugin(supervisor, CONFIG, paths, ServiceManager(None), said.append, clock)
    plugin.install()
    (wakeup,) = asyncore.socket_map.values()
    return SimpleNamespace(supervisor=supervisor, said=said, clock=clock, wakeup=wakeup, paths=paths)


def die(made, name="api-0", event=events.ProcessStateExitedEvent, pid=NO_SUCH_PID):
    process = made.supervisor.process(name)
    process.pid = pid
    process.state = ProcessStates.EXITED
    events.notify(event(process, ProcessStates.RUNNING))
    process.pid = 0
    return process


FAULTS = {
    "the process list is gone": lambda made: setattr(made.supervisor, "process_groups", None),
    "the runtime directory is gone": lambda made: shutil.rmtree(made.paths.runtime_dir),
    "a page is a directory": lambda made: made.paths.page("api-0").mkdir(parents=True),
    "a state is a directory": lambda made: made.paths.program_state("api-0").mkdir(parents=True),
    "a state is garbage": lambda made: (
        made.paths.program_state("api-0").parent.mkdir(parents=True),
        made.paths.program_state("api-0").write_bytes(b"\xff\x00"),
    ),
    "the ledger is a directory": lambda made: made.paths.ledger.mkdir(parents=True),
    "the ledger is garbage": lambda made: (
        made.paths.ledger.parent.mkdir(parents=True),
        made.paths.ledger.write_bytes(os.urandom(5000)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_escapes_into_supervisor(made, fault):
    FAULTS[fault](made)
    events.notify(events.SupervisorRunningEvent())
    for pid in (0, NO_SUCH_PID, 1):
        for event in (
            events.ProcessStateExitedEvent,
            events.ProcessStateBackoffEvent,
            events.ProcessStateStoppedEvent,
            events.ProcessStateFatalEvent,
            events.ProcessStateStartingEvent,
        ):
            die_anywhere(made, event, pid)
    for _ in range(3):
        made.clock.now_s += 61
        assert made.wakeup.readable()
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    assert made.wakeup.readable()
    events.notify(events.SupervisorStoppingEvent())
    made.wakeup.handle_read_event()


def die_anywhere(made, event, pid):
    process = FakeProcess("api-0")
    process.pid = pid
    events.notify(event(process, ProcessStates.RUNNING))


def test_a_fault_is_logged_and_said(made):
    made.supervisor.process_groups = None
    made.wakeup.readable()
    assert "Traceback" in made.supervisor.logged[0]
    assert "a fault in the daemon itself" in made.said[0]


def test_a_death_nobody_else_can_slow_down_is_held(made):
    """Its launcher never published a state: the launcher itself fails."""
    process = die(made)
    assert process.config.autorestart is False
    made.clock.now_s += HOLD_S - 0.1
    made.wakeup.readable()
    assert process.config.autorestart is False
    made.clock.now_s += 0.2
    made.wakeup.readable()
    assert process.config.autorestart


def test_a_program_in_fatal_is_started_again_after_a_minute(made):
    process = made.supervisor.process("api-0")
    process.state = ProcessStates.FATAL
    events.notify(events.ProcessStateFatalEvent(process, ProcessStates.BACKOFF))
    made.clock.now_s += FATAL_PAUSE_S - 1
    made.wakeup.readable()
    assert process.num_spawns == 0
    made.clock.now_s += 2
    made.wakeup.readable()
    assert process.num_spawns == 1


def test_a_sighup_from_before_the_handler_stood_restarts_nothing(made):
    events.notify(events.SupervisorRunningEvent())
    assert made.supervisor.options.signal_receiver._signals_recvd == [signal.SIGCHLD]


def reloaded(made, **recovery):
    """A reload has replaced effective.json."""
    paths = PathsConfig(*map(str, (made.paths.runtime_dir, made.paths.log_dir, made.paths.state_dir)))
    config = msgspec.structs.replace(CONFIG, recovery=RecoveryConfig(**recovery), paths=paths)
    write_effective(config, made.paths.effective_config)


def test_a_program_may_take_as_long_to_stop_as_the_configuration_that_it_started_with_says(made):
    engine = next(name for name in made.supervisor.process_groups["all"].processes if name.startswith("engine"))
    process = made.supervisor.process(engine)
    reloaded(made, engine_stop_timeout_s=77)
    made.wakeup.readable()
    assert process.config.stopwaitsecs == 0
    events.notify(events.ProcessStateStartingEvent(process, ProcessStates.STOPPED))
    assert process.config.stopwaitsecs == 77


def test_a_reloaded_limit_for_standing_still_holds_at_the_next_look(made, monkeypatch):
    limits = []
    monkeypatch.setattr(StandstillWatch, "look", lambda _self, name, _pid, _page, limit_s, **_: limits.append((name, limit_s)))
    process = made.supervisor.process("monitor")
    process.pid = os.getpid()
    write_program_state(
        made.paths.program_state("monitor"), ProgramState("monitor", os.getpid(), LaunchState.RUNNING, 0.0)
    )
    for loop_hang_s in (10.0, 42.0):
        reloaded(made, loop_hang_s=loop_hang_s)
        made.clock.now_s += 1
        made.wakeup.readable()
    assert limits == [("monitor", 10.0), ("monitor", 42.0)]


def test_sigterm_begins_the_orderly_stop(made):
    events.notify(events.SupervisorRunningEvent())
    os.kill(os.getpid(), signal.SIGTERM)
    made.wakeup.readable()
    assert made.supervisor.options.mood == SupervisorStates.SHUTDOWN


def test_deaths_that_were_not_written_are_written_later(made):
    made.paths.ledger.mkdir(parents=True)
    process = die(made)
    assert process.config.autorestart is False
    assert any("the ledger cannot be written" in line for line in made.said)
    made.paths.ledger.rmdir()
    made.clock.now_s += 60
    made.wakeup.readable()
    assert made.paths.ledger.read_text().count('"death"') == 1
    assert made.said[-1] == "the ledger can be written again"
