"""aphroditectl as one calls it: exit codes, stdout for data, stderr for talk. The supervisor is a small fake."""

from __future__ import annotations

import fcntl
import json
import shutil
import socketserver
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xmlrpc.server import SimpleXMLRPCDispatcher, SimpleXMLRPCRequestHandler

import pytest

from aphrodited.cli.aphroditectl import main
from aphrodited.cli.target import find_target
from aphrodited.config.loader import load_config, write_effective
from aphrodited.paths import DaemonPaths, engine_program
from aphrodited.supervision.ledger import Conviction, Death, Ledger, Ready, Trial, Verdict, stamp

ENGINE = engine_program("m", 0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for unix sockets, wherever pytest keeps its own folders."""
    path = Path(tempfile.mkdtemp(prefix="ctl-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def config(folder: Path) -> Path:
    path = folder / "a.yaml"
    path.write_text(
        "models: [{name: m, path: org/m}]\n"
        "api: {workers: 2, drain_timeout_s: 1}\n"
        "paths: {runtime_dir: run, state_dir: state, log_dir: log}\n"
    )
    for name in ("run", "state", "log"):
        (folder / name).mkdir()
    return path


def paths(config: Path) -> DaemonPaths:
    return find_target(config).paths


class FakeSupervisor(socketserver.UnixStreamServer, SimpleXMLRPCDispatcher):
    """Answers on the supervisor's socket, writes down what it is asked, and holds the daemon's lock."""

    logRequests = False
    _send_traceback_header = False

    def __init__(self, daemon: DaemonPaths) -> None:
        SimpleXMLRPCDispatcher.__init__(self, allow_none=True)
        socketserver.UnixStreamServer.__init__(self, str(daemon.supervisor_socket), _Handler)
        self.calls: list[tuple[str, ...]] = []
        self.lock = daemon.daemon_lock.open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.register_instance(self)

    def _dispatch(self, method: str, params: tuple[Any, ...]) -> Any:
        self.calls.append((method.removeprefix("supervisor."), *map(str, params)))
        if method.endswith("shutdown"):
            threading.Timer(0.2, self.lock.close).start()
        return [] if method.endswith("getAllProcessInfo") else True


class _Handler(SimpleXMLRPCRequestHandler):
    disable_nagle_algorithm = False
    rpc_paths = ("/RPC2",)

    def address_string(self) -> str:
        return "unix"



@pytest.fixture
def supervisor(config: Path) -> Iterator[FakeSupervisor]:
    server = FakeSupervisor(paths(config))
    write_effective(load_config(config), paths(config).effective_config)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    server.lock.close()


def ctl(config: Path, *words: str) -> int:
    return main(["--config", str(config), *words])


def test_status_of_a_daemon_that_is_down_exits_3(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl(config, "status") == 3
    out = capsys.readouterr().out
    assert "aphrodited is down" in out
    assert ENGINE in out


def test_status_is_stable_json(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl(config, "status", "--json") == 3
    status = json.loads(capsys.readouterr().out)
    assert status["ready"] is False
    assert {p["role"] for p in status["processes"]} == {"supervisor", "engine", "api", "monitor"}
    needed = {"name", "role", "model", "state", "pid", "generation", "uptime_s", "restarts", "last_exit"}
    assert all(needed <= set(process) for process in status["processes"])
    assert [(m["name"], m["state"]) for m in status["models"]] == [("m", "stopped")]


def test_waiting_for_ready_ends(config: Path) -> None:
    started_at_s = time.monotonic()
    assert ctl(config, "status", "--wait", "0.3") == 3
    assert time.monotonic() - started_at_s >= 0.3


def test_status_without_a_configuration_exits_4(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl(folder / "none.yaml", "status") == 4
    assert "no such file" in capsys.readouterr().err


def test_check_says_all_problems_and_exits_78(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl(config, "check") == 0
    config.write_text("models: []\nfoo: 1\n")
    assert ctl(config, "check") == 78
    err = capsys.readouterr().err
    assert f"{config}:1:9: models: has 0 items" in err
    assert f"{config}:2:1: foo: unknown key" in err


@pytest.mark.parametrize(
    ("words", "programs"),
    [
        (["engine"], [ENGINE]),
        (["m"], [ENGINE]),
        (["api"], ["api-0", "api-1"]),
        (["api-1", "monitor"], ["api-1", "monitor"]),
        (["api", "api-0"], ["api-0", "api-1"]),
    ],
)
def test_a_role_a_model_and_a_name_mean_processes(
    config: Path, supervisor: FakeSupervisor, words: list[str], programs: list[str]
) -> None:
    assert ctl(config, "start", *words) == 0
    assert [call[1].rpartition(":")[2] for call in supervisor.calls if call[0] == "startProcess"] == programs


def test_all_means_every_process(config: Path, supervisor: FakeSupervisor) -> None:
    assert ctl(config, "stop", "all") == 0
    assert len([call for call in supervisor.calls if call[0] == "stopProcess"]) == 4


def test_a_running_daemon_is_steered_while_its_file_is_broken(config: Path, supervisor: FakeSupervisor) -> None:
    config.write_text("models: broken\npaths: {runtime_dir: run, state_dir: state, log_dir: log}\n")
    assert ctl(config, "restart", "engine") == 0
    assert [call[0] for call in supervisor.calls if call[0].endswith("Process")] == ["stopProcess", "startProcess"]


def test_stopping_the_supervisor_waits_for_the_end(
    config: Path, supervisor: FakeSupervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl(config, "stop", "supervisor") == 0
    assert supervisor.lock.closed
    assert capsys.readouterr().out == "aphrodited stopped\n"


@pytest.mark.parametrize("words", [["start", "supervisor"], ["stop", "nobody"], ["restart", "engine-0"]])
def test_what_cannot_be_meant_exits_2(config: Path, words: list[str]) -> None:
    assert ctl(config, *words) == 2


def test_steering_a_daemon_that_is_down_exits_1_and_says_it_once(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl(config, "stop", "all") == 1
    assert capsys.readouterr().err.count("is it running?") == 1


def test_reset_writes_a_line_per_process(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl(config, "reset", "api") == 0
    assert [entry.program for entry in Ledger(paths(config).ledger).read()] == ["api-0", "api-1"]
    assert capsys.readouterr().out == "api-0 reset\napi-1 reset\n"


def test_events_are_sentences(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger(paths(config).ledger)
    ledger.append(Death(**stamp(ENGINE), pid=7, uptime_s=3.0, signal="SIGKILL", num_finished=2, cause="a test"))
    ledger.append(Verdict(**stamp(ENGINE), pid=8, verdict="hang", action="kill", reason="stood still for 30 s"))
    ledger.append(Ready(**stamp(ENGINE), pid=9, generation=2))
    ctl(config, "reset", "engine")
    ledger.append(Trial(**stamp(ENGINE), pid=9, num_suspects=4, model="m"))
    ledger.append(Conviction(**stamp(ENGINE), pid=10, fingerprint="c0ffee", cause="killed by SIGABRT", model="m"))
    capsys.readouterr()
    assert ctl(config, "events", "engine") == 0
    lines = [line.split(maxsplit=2)[2] for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("died: ")
    assert "SIGKILL" in lines[0]
    assert lines[0].endswith("(pid 7, after 3.0s and 2 finished)")
    assert lines[1] == "hang, kill: stood still for 30 s (pid 8)"
    assert lines[2] == "ready: generation 2 (pid 9)"
    assert lines[3].startswith("reset by uid ")
    assert lines[4].startswith("suspects: 4 requests ")
    assert lines[5].startswith("quarantine: request c0ffee ")
    assert lines[5].endswith("killed by SIGABRT")
    assert ctl(config, "events", "api") == 0
    assert capsys.readouterr().out == ""
    assert ctl(config, "events", "--json") == 0
    assert [json.loads(line)["entry"] for line in capsys.readouterr().out.splitlines()] == [
        "death",
        "verdict",
        "ready",
        "reset",
        "trial",
        "conviction",
    ]


def test_events_of_a_quiet_daemon_are_none(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl(config, "events") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "nothing has happened yet" in captured.err


def test_logs_are_read_while_the_daemon_is_down(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (paths(config).log_dir / "api-0.log").write_text('{"time":"2026-01-01T00:00:00Z","level":"info","event":"a_b","request_id":"r"}\n')
    (paths(config).log_dir / f"{ENGINE}.log").write_text("raw\n")
    assert ctl(config, "logs", "--json") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert ctl(config, "logs", "m") == 0
    assert capsys.readouterr().out == f"{ENGINE} | raw\n"
    assert ctl(config, "logs", "--request", "r", "--since", "2025-12-31T00:00Z", "--level", "info", "-n", "5") == 0
    assert "a_b" in capsys.readouterr().out
    assert ctl(config, "logs", "--since", "whenever") == 2


@pytest.mark.parametrize("words", [[], ["stop"], ["nonsense"], ["logs", "-n", "x"], ["logs", "-n", "-1"]])
def test_a_wrong_command_line_exits_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2


def test_the_file_may_come_from_the_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APHRODITED_CONFIG", str(config))
    assert main(["check"]) == 0
    assert str(config) in capsys.readouterr().out
