"""In which order processes are started and stopped, and what is written down before. The supervisor is a small fake."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aphrodited.cli import steering
from aphrodited.cli.target import Target, UsageError, find_target
from aphrodited.page import PageWriter, Phase
from aphrodited.paths import engine_program
from aphrodited.procfs import process_start_ticks
from aphrodited.supervision.desired import Desired, read_desired, write_desired
from aphrodited.supervision.programs import Program, Role

FIRST, SECOND, OTHER = engine_program("m", 0), engine_program("m", 1), engine_program("n", 0)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    path = tmp_path / "a.yaml"
    path.write_text(
        "models: [{name: m, path: org/m, standby: 1}, {name: n, path: org/n, standby: 0}]\n"
        "api: {workers: 1}\npaths: {runtime_dir: run, state_dir: state, log_dir: log}\n"
    )
    return find_target(path)


class FakeSupervisor:
    """Does nothing, and keeps what it was asked with what the operator wanted of model m at that moment."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.calls: list[tuple[str, str, Desired]] = []

    def pid(self) -> int:
        return 1

    def _note(self, command: str, name: str) -> None:
        self.calls.append((command, name, read_desired(self._target.paths.model("m"))))

    def start(self, name: str) -> None:
        self._note("start", name)

    def stop(self, name: str, *, timeout_s: float) -> None:
        self._note("stop", name)

    def restart(self, name: str, *, timeout_s: float) -> None:
        self._note("restart", name)


@pytest.fixture
def supervisor(target: Target, monkeypatch: pytest.MonkeyPatch) -> FakeSupervisor:
    fake = FakeSupervisor(target)
    monkeypatch.setattr(steering, "SupervisorClient", lambda _socket: fake)
    return fake


@pytest.fixture
def active_and_standby(target: Target) -> Iterator[None]:
    """The first engine serves, the second waits; a sleeping process is both."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    who = {"pid": process.pid, "start_ticks": process_start_ticks(process.pid) or 0}
    pages = [PageWriter(target.paths.page(name)) for name in (FIRST, SECOND)]
    pages[0].update(**who, phase=Phase.READY, generation=3)
    pages[1].update(**who, phase=Phase.STANDBY)
    yield
    process.kill()
    process.wait()
    for page in pages:
        page.close()


@pytest.mark.usefixtures("active_and_standby")
@pytest.mark.parametrize("words", [["m"], [FIRST, SECOND], ["m", "monitor"]])
def test_a_model_is_written_down_as_stopped_before_its_standby_and_then_its_active_engine_stop(
    target: Target, supervisor: FakeSupervisor, words: list[str]
) -> None:
    assert steering.steer(target, "stop", words) == 0
    calls = [call for call in supervisor.calls if call[1].startswith("engine")]
    assert calls == [("stop", SECOND, Desired.STOPPED), ("stop", FIRST, Desired.STOPPED)]


@pytest.mark.usefixtures("active_and_standby")
@pytest.mark.parametrize("word", [FIRST, SECOND, "n"])
def test_a_model_of_which_an_engine_is_left_is_still_wanted(
    target: Target, supervisor: FakeSupervisor, word: str
) -> None:
    assert steering.steer(target, "stop", [word]) == 0
    assert {call[2] for call in supervisor.calls} == {Desired.SERVED}


@pytest.mark.parametrize("command", ["start", "restart"])
def test_a_stopped_model_is_wanted_again_before_it_starts(
    target: Target, supervisor: FakeSupervisor, command: str
) -> None:
    steering.steer(target, "stop", ["engine"])
    assert steering.steer(target, command, [SECOND]) == 0
    assert supervisor.calls[-1] == (command, SECOND, Desired.SERVED)
    assert read_desired(target.paths.model("n")) is Desired.STOPPED


@pytest.mark.parametrize("command", ["start", "restart"])
def test_an_unloaded_model_is_left_out(
    target: Target, supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    write_desired(target.paths, "m", Desired.UNLOADED)
    assert steering.steer(target, command, ["engine"]) == 0
    assert supervisor.calls == [(command, OTHER, Desired.UNLOADED)]
    assert "aphroditectl load m" in capsys.readouterr().err
    with pytest.raises(UsageError, match="nothing else"):
        steering.steer(target, command, ["m"])


def test_stopping_an_unloaded_model_leaves_it_unloaded(target: Target, supervisor: FakeSupervisor) -> None:
    write_desired(target.paths, "m", Desired.UNLOADED)
    assert steering.steer(target, "stop", ["m"]) == 0
    assert read_desired(target.paths.model("m")) is Desired.UNLOADED


@pytest.mark.usefixtures("active_and_standby")
@pytest.mark.parametrize("command", ["start", "restart"])
def test_a_drained_model_stays_drained(target: Target, supervisor: FakeSupervisor, command: str) -> None:
    write_desired(target.paths, "m", Desired.DRAINED)
    assert steering.steer(target, command, ["m"]) == 0
    assert {call[2] for call in supervisor.calls} == {Desired.DRAINED}


def test_an_api_worker_that_does_not_come_back_ends_the_restart(
    target: Target, supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steering, "API_TIMEOUT_S", 0.2)
    two_workers = [Program("api-0", Role.API, 5), Program("api-1", Role.API, 5)]
    assert steering.restart_programs(target, two_workers) == steering.EXIT_FAILED
    assert [name for _, name, _ in supervisor.calls] == ["api-0"]
    assert "api-0 does not serve again" in capsys.readouterr().err


@pytest.mark.usefixtures("active_and_standby")
def test_a_restart_takes_the_active_engine_when_a_standby_waits_again(
    target: Target, supervisor: FakeSupervisor
) -> None:
    assert steering.steer(target, "restart", ["m"]) == 0
    assert supervisor.calls == [("restart", SECOND, Desired.SERVED), ("restart", FIRST, Desired.SERVED)]


@pytest.mark.usefixtures("active_and_standby")
def test_a_standby_that_does_not_come_holds_a_restart_up_for_a_while_only(
    target: Target, supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "STANDBY_TIMEOUT_S", 0.3)
    target.paths.page(SECOND).unlink()
    assert steering.steer(target, "restart", ["m"]) == 0
    assert [name for _, name, _ in supervisor.calls] == [SECOND, FIRST]
