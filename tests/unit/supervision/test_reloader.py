"""The supervisor's part in a reload: one child at a time, and what the service manager hears. Children are real."""

import os
import socket
import sys
import time

import pytest

from aphrodited.config.loader import write_effective
from aphrodited.config.schema import Config, ModelConfig, PathsConfig
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.reloader import LiveConfig, Reloader
from aphrodited.supervision.sd_notify import ServiceManager


@pytest.fixture
def paths(tmp_path):
    return DaemonPaths(tmp_path, tmp_path, tmp_path)


@pytest.fixture
def manager(tmp_path):
    """A service manager of which one reads what it was told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "n"))
        receiver.settimeout(5)
        yield ServiceManager(str(tmp_path / "n")), lambda: receiver.recv(4096).decode()


def reap(reloader):
    """As the supervisor does: wait for any child and say so."""
    pid, wait_status = os.waitpid(-1, 0)
    reloader.ended(pid, wait_status)


def command(tmp_path, exit_code):
    """Writes its arguments down, and ends."""
    code = f"import sys; open({str(tmp_path / 'arguments')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n'); sys.exit({exit_code})"
    return (sys.executable, "-c", code)


@pytest.mark.parametrize(("exit_code", "last"), [(0, "reloaded"), (78, "the reload failed with exit code 78; see above")])
def test_a_reload_is_a_child_whose_beginning_and_end_are_told(paths, tmp_path, manager, exit_code, last):
    told, said = manager[1], []
    reloader = Reloader(paths, manager[0], said.append, command(tmp_path, exit_code))
    reloader.run_if_wanted(can_start=True)
    assert said == []
    reloader.is_wanted = True
    reloader.run_if_wanted(can_start=True)
    before = time.monotonic_ns() // 1000
    state, instant = told().splitlines()
    assert state == "RELOADING=1"
    assert 0 < int(instant.removeprefix("MONOTONIC_USEC=")) <= before
    reap(reloader)
    reloader.run_if_wanted(can_start=True)
    assert told() == "READY=1"
    assert said == ["SIGHUP: reloading the configuration", last]
    assert (tmp_path / "arguments").read_text() == f"{tmp_path}\n"


def test_wishes_during_a_reload_become_one_more(paths, tmp_path):
    said = []
    reloader = Reloader(paths, ServiceManager(None), said.append, command(tmp_path, 0))
    for _ in range(3):
        reloader.is_wanted = True
        reloader.run_if_wanted(can_start=True)
    reap(reloader)
    for _ in range(3):
        reloader.run_if_wanted(can_start=True)
    reap(reloader)
    reloader.run_if_wanted(can_start=True)
    assert said.count("reloaded") == 2
    assert len((tmp_path / "arguments").read_text().splitlines()) == 2


def test_nothing_is_started_while_the_daemon_stops(paths, tmp_path):
    said = []
    reloader = Reloader(paths, ServiceManager(None), said.append, command(tmp_path, 0))
    reloader.is_wanted = True
    reloader.run_if_wanted(can_start=False)
    assert said == []


def test_a_replaced_configuration_is_given_once(paths):
    config = Config(models=(ModelConfig("m", "p"),), paths=PathsConfig(*[str(paths.runtime_dir)] * 3))
    write_effective(config, paths.effective_config)
    live = LiveConfig(paths)
    assert live.read_if_changed() is None
    write_effective(config, paths.effective_config)
    assert live.read_if_changed() == config
    assert live.read_if_changed() is None
    paths.effective_config.write_text("{")
    assert live.read_if_changed() is None
