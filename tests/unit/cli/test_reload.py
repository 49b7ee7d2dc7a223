"""What a reload makes of a file, and in which order it carries that out. The supervisor is a fake, pages are the test's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from aphrodited.cli import reload_steps
from aphrodited.cli.reload import make_plan
from aphrodited.cli.reload_steps import Reload, carry_out
from aphrodited.cli.target import Target, find_target
from aphrodited.config.given import given_from, read_given, write_given
from aphrodited.config.loader import load, read_effective, write_effective
from aphrodited.config.schema import Config
from aphrodited.errors import ConfigError
from aphrodited.page import PageWriter, Phase
from aphrodited.paths import engine_program
from aphrodited.procfs import process_start_ticks
from aphrodited.supervision import ledger
from aphrodited.supervision.program_state import LaunchState, ProgramState, write_program_state
from aphrodited.supervision.programs import programs
from aphrodited.supervision.rpc import ProcessInfo

FILE = """
models: [{name: m, path: org/m, standby: 1, engine: {max_num_seqs: 8}}]
api: {port: 0, workers: 2, max_choices: 4}
recovery: {max_deaths: 20}
paths: {runtime_dir: run, state_dir: state, log_dir: log}
"""
STANDBY, ACTIVE = engine_program("m", 0), engine_program("m", 1)


class Daemon:
    """The files of a daemon that runs, and its supervisor. broken: programs that do not come up any more."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.target: Target = find_target(file)
        for folder in (self.target.paths.runtime_dir, self.target.paths.state_dir, self.target.paths.log_dir):
            folder.mkdir()
        given = given_from(file, (), load(file).config, {})
        self.effective = msgspec.structs.replace(
            given.config, api=msgspec.structs.replace(given.config.api, port=41414)
        )
        write_given(given, self.target.paths.given)
        write_effective(self.effective, self.target.paths.effective_config)
        self.restarts: list[tuple[str, Config]] = []
        self.broken: set[str] = set()
        self.stopped: set[str] = set()
        self._sleepers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _ in range(2)]
        for name in self.names:
            self._serve(name, self._sleepers[0].pid)

    @property
    def names(self) -> list[str]:
        return [program.name for program in programs(self.effective)]

    def _serve(self, name: str, pid: int) -> None:
        phase = Phase.STANDBY if name == STANDBY else Phase.READY
        generation = 3 if name == ACTIVE else 0
        page = PageWriter(self.target.paths.page(name))
        page.update(pid=pid, start_ticks=process_start_ticks(pid) or 0, phase=phase, generation=generation)
        page.close()

    def processes(self) -> list[ProcessInfo]:
        state = {name: "STOPPED" if name in self.stopped else "RUNNING" for name in self.names}
        return [ProcessInfo(name, state[name], 1, 0, 0, 0, 0, "") for name in self.names]

    def restart(self, name: str, *, timeout_s: float) -> None:
        assert timeout_s >= 10
        config = read_effective(self.target.paths.effective_config)
        self.restarts.append((name, config))
        pid = self._sleepers[len([each for each, _ in self.restarts if each == name]) % 2].pid
        if name in self.broken and config != self.effective:
            self.target.paths.page(name).unlink()
            parked = ProgramState(name, pid, LaunchState.PARKED, ledger.boottime_s(), "it does not fit")
            write_program_state(self.target.paths.program_state(name), parked)
            return
        self.target.paths.program_state(name).unlink(missing_ok=True)
        self._serve(name, pid)

    def rewrite(self, old: str, new: str) -> None:
        assert old in self.file.read_text()
        self.file.write_text(self.file.read_text().replace(old, new))

    def plan(self, *, partial: bool = False) -> Reload:
        return make_plan(read_given(self.target.paths.given), self.target.paths, "me", partial=partial)

    def reload(self) -> int:
        return carry_out(self.target, self.plan())

    def entries(self, kind: type) -> list[ledger.LedgerEntry]:
        return [entry for entry in ledger.Ledger(self.target.paths.ledger).read() if isinstance(entry, kind)]

    def close(self) -> None:
        for sleeper in self._sleepers:
            sleeper.kill()
            sleeper.wait()


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    for name in ("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "LOGS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "a.yaml"
    file.write_text(FILE)
    daemon = Daemon(file)
    monkeypatch.setattr(reload_steps, "SupervisorClient", lambda _socket: daemon)
    monkeypatch.setattr(Target, "daemon_pid", lambda _self: 1)
    yield daemon
    daemon.close()


def test_what_was_decided_at_the_start_is_neither_a_change_nor_lost(daemon: Daemon) -> None:
    assert daemon.plan().changes == []
    daemon.rewrite("max_choices: 4", "max_choices: 5")
    plan = daemon.plan()
    assert [str(change) for change in plan.changes] == ["api.max_choices: 4 -> 5"]
    assert (plan.effective[1].api.port, plan.effective[1].api.max_choices) == (41414, 5)
    assert (plan.given[1].config.api.port, plan.given[1].config.api.max_choices) == (0, 5)


@pytest.mark.parametrize("partial", [True, False])
def test_what_needs_a_full_restart_is_left_out_of_what_is_applied(daemon: Daemon, partial: bool) -> None:
    daemon.rewrite("port: 0, workers: 2, max_choices: 4", "port: 1, workers: 3, max_choices: 5")
    plan = daemon.plan(partial=partial)
    left = plan.left_out if partial else plan.refused
    assert [change.key for change in left] == ["api.port", "api.workers"]
    assert (plan.effective[1].api.port, plan.effective[1].api.workers) == (41414, 2)
    assert plan.given[1].config.api.port == 0
    assert not (plan.refused if partial else plan.left_out)


def test_keys_may_not_be_dropped_from_an_address_that_was_handed_over(daemon: Daemon) -> None:
    """By socket activation: the file says loopback, the socket is open to the network."""
    api = msgspec.structs.replace(daemon.effective.api, host="0.0.0.0", allow_unauthenticated=True)
    write_effective(msgspec.structs.replace(daemon.effective, api=api), daemon.target.paths.effective_config)
    given = read_given(daemon.target.paths.given)
    api = msgspec.structs.replace(given.config.api, allow_unauthenticated=True)
    write_given(
        msgspec.structs.replace(given, config=msgspec.structs.replace(given.config, api=api)), daemon.target.paths.given
    )
    with pytest.raises(ConfigError, match=r"api\.keys_file is required"):
        daemon.plan()


def test_hot_values_restart_nothing(daemon: Daemon) -> None:
    daemon.rewrite("max_deaths: 20", "max_deaths: 30")
    assert daemon.reload() == 0
    assert daemon.restarts == []
    assert read_effective(daemon.target.paths.effective_config).recovery.max_deaths == 30
    assert daemon.plan().changes == []


def test_standbys_come_before_the_active_engine_and_workers_one_after_the_other(daemon: Daemon) -> None:
    daemon.rewrite("max_num_seqs: 8", "max_num_seqs: 9")
    daemon.rewrite("max_choices: 4", "max_choices: 5")
    daemon.rewrite("recovery:", "monitor: {interval_s: 1}\nrecovery:")
    assert daemon.reload() == 0
    assert [name for name, _ in daemon.restarts] == ["monitor", STANDBY, ACTIVE, "api-0", "api-1"]
    assert {config.models[0].engine.max_num_seqs for _, config in daemon.restarts} == {9}
    assert read_given(daemon.target.paths.given).pending == ()


def test_what_an_operator_stopped_stays_stopped(daemon: Daemon) -> None:
    daemon.stopped = {STANDBY, "api-1"}
    daemon.rewrite("max_num_seqs: 8", "max_num_seqs: 9")
    daemon.rewrite("max_choices: 4", "max_choices: 5")
    assert daemon.reload() == 0
    assert [name for name, _ in daemon.restarts] == [ACTIVE, "api-0"]


def test_an_engine_that_does_not_come_up_takes_its_changes_back_and_no_others(daemon: Daemon) -> None:
    daemon.broken = {STANDBY}
    daemon.rewrite("max_num_seqs: 8", "max_num_seqs: 9")
    daemon.rewrite("max_choices: 4", "max_choices: 5")
    assert daemon.reload() == 1
    assert [name for name, _ in daemon.restarts] == [STANDBY, "api-0", "api-1"]
    effective = read_effective(daemon.target.paths.effective_config)
    assert (effective.models[0].engine.max_num_seqs, effective.api.max_choices) == (8, 5)
    assert [entry.program for entry in daemon.entries(ledger.Reset)] == [STANDBY]
    undone = daemon.entries(ledger.Reload)[-1]
    assert isinstance(undone, ledger.Reload)
    assert (undone.changes, undone.undone) == ("models[0].engine.max_num_seqs: 8 -> 9", "it does not fit")
    assert [change.key for change in daemon.plan().changes] == ["models[0].engine.max_num_seqs"]


def test_what_was_restarted_before_a_failure_goes_back_too(daemon: Daemon) -> None:
    daemon.broken = {"api-1"}
    daemon.rewrite("max_choices: 4", "max_choices: 5")
    assert daemon.reload() == 1
    assert [(name, config.api.max_choices) for name, config in daemon.restarts] == [("api-0", 5), ("api-1", 5), ("api-0", 4)]


def test_a_reload_that_is_cut_short_is_taken_up_where_it_was(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.rewrite("max_choices: 4", "max_choices: 5")

    class Killed(BaseException):
        """In place of a SIGKILL."""

    def die(name: str, *, timeout_s: float) -> None:
        if name == "api-1":
            raise Killed
        Daemon.restart(daemon, name, timeout_s=timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(daemon, "restart", die)
        with pytest.raises(Killed):
            daemon.reload()
    assert read_effective(daemon.target.paths.effective_config).api.max_choices == 5
    assert read_given(daemon.target.paths.given).pending == ("api-1",)
    daemon.restarts.clear()
    assert daemon.reload() == 0
    assert [name for name, _ in daemon.restarts] == ["api-1"]


def test_a_parked_program_is_reset_rather_than_restarted(daemon: Daemon) -> None:
    daemon.broken = {STANDBY}
    daemon.rewrite("max_num_seqs: 8", "max_num_seqs: 9")
    daemon.reload()
    daemon.restarts.clear()
    daemon.rewrite("max_deaths: 20", "max_deaths: 30")
    daemon.rewrite("max_num_seqs: 9", "max_num_seqs: 7")
    assert daemon.reload() == 0
    assert [name for name, _ in daemon.restarts] == [ACTIVE]
    assert [entry.program for entry in daemon.entries(ledger.Reset)] == [STANDBY, STANDBY]
