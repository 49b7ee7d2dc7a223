"""The daemon as its operator meets it: every real process, on a backend that computes nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aphrodited.paths import engine_program
from aphrodited.procfs import resident_bytes
from tests.support.daemons import REAL_DAEMON, Daemon, is_alive, wait_until
from tests.support.real_daemon import RealDaemon, real_daemon

pytestmark = pytest.mark.timeout(120)


def command(*arguments):
    return subprocess.run([*REAL_DAEMON, *arguments], capture_output=True, text=True, timeout=30)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("models:\n  - {name: tiny, path: none}\npaths: {runtime_dir: run, state_dir: state}\n")
    return path


@pytest.fixture
def daemon():
    made = RealDaemon(step_s=0.02)
    yield made
    made.close()


def test_it_says_its_version():
    assert command("--version").stdout.startswith("aphrodited 0.")


def test_check_config_says_that_all_is_well_and_starts_nothing(config):
    result = command("--config", str(config), "--check-config")
    assert (result.returncode, result.stdout) == (0, f"{config}: no problems found\n")
    assert not (config.parent / "run").exists()


def test_show_config_says_where_each_value_comes_from(config):
    shown = command("--config", str(config), "--set", "api.port=8080", "--show-config").stdout
    assert f"{config}:2" in shown
    assert "api.port" in shown
    assert "--set" in shown
    assert "default" in shown


def test_a_bad_configuration_exits_78_with_every_problem_at_once(config):
    config.write_text("models:\n  - {name: tiny, path: none, standby: 2}\napi:\n  prot: 1\n  workers: many\n")
    for arguments in (["--check-config"], []):
        result = command("--config", str(config), *arguments)
        assert result.returncode == 78
        for problem in (f"{config}:4:3: api.prot", "api.workers"):
            assert problem in result.stderr


def test_a_chat_works_when_it_says_that_it_is_ready(daemon):
    daemon.start_ready(40)
    status, answer = daemon.complete()
    assert status == 200
    assert answer["choices"][0]["text"]
    assert daemon.status().ready
    assert f'curl http://127.0.0.1:{daemon.port}/v1/chat/completions' in daemon.said()
    assert daemon.terminate() == 0


def test_the_supervisor_stays_small_and_single_threaded(daemon):
    daemon.start_ready(40)
    assert resident_bytes(daemon.process.pid) <= 40 * 1024**2
    assert len(os.listdir(f"/proc/{daemon.process.pid}/task")) == 1
    maps = Path(f"/proc/{daemon.process.pid}/maps").read_text()
    assert "zmq" not in maps
    assert "torch" not in maps


def test_running_streams_finish_within_the_drain_and_then_everything_is_gone(daemon):
    daemon.start_ready(40)
    members = daemon.group_members()
    stream = daemon.open_stream(max_tokens=60)
    wait_until(lambda: stream.num_events > 2, what="the stream")
    assert daemon.terminate() == 0
    stream.wait()
    assert stream.is_done
    assert stream.error is None
    assert not [pid for pid in members if is_alive(pid)]
    assert [path.name for path in daemon.paths.runtime_dir.iterdir()] == ["daemon.lock"]


def test_streams_that_outlast_the_drain_are_told(daemon):
    daemon.start_ready(40)
    stream = daemon.open_stream()
    wait_until(lambda: stream.num_events > 2, what="the stream")
    assert daemon.terminate(30) == 0
    stream.wait()
    assert stream.error is not None or stream.is_done


def test_a_second_sigterm_ends_streams_at_once(daemon):
    daemon.start_ready(40)
    members = daemon.group_members()
    stream = daemon.open_stream()
    wait_until(lambda: stream.num_events > 2, what="the stream")
    daemon.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in daemon.said())
    time.sleep(0.6)  # sooner it would be the same signal, delivered twice
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 0
    assert not [pid for pid in members if is_alive(pid)]
    stream.wait()


def test_sigterm_during_the_start_leaves_nothing(daemon):
    daemon.start()
    wait_until(lambda: len(daemon.group_members()) >= 4, what="the first processes")
    members = daemon.group_members()
    assert daemon.terminate() == 0
    assert not [pid for pid in members if is_alive(pid)]


def test_a_model_that_cannot_be_loaded_is_parked_with_the_reason_and_the_others_serve():
    made = RealDaemon("good", "bad")
    try:
        damaged = made.folder / "damaged.gguf"
        damaged.write_bytes(b"GGUF" + os.urandom(64))
        text = made.config.read_text()
        _good, bad = [line for line in text.splitlines() if "name: " in line]
        made.config.write_text(text.replace(bad, f"  - {{name: bad, path: {damaged}}}"))
        made.start_ready(60)
        assert "good serves; bad is parked: " in made.said()
        assert str(damaged) in made.said()
        status = {model.name: model for model in made.status().models}
        assert (status["good"].state, status["bad"].state) == ("ready", "parked")
        assert str(damaged) in status["bad"].reason
        assert made.complete()[0] == 200
        assert [death.code for death in made.deaths(engine_program("bad", 0))] == [78], made.said()
    finally:
        made.close()


def test_a_restart_on_the_same_directories_begins_with_a_clean_slate():
    with real_daemon() as made:
        first = made.engine()
        assert made.terminate() == 0
        made.start_ready(40)
        assert made.engine().pid != first.pid
        assert made.complete()[0] == 200


def test_an_unusable_ledger_slows_starts_down_and_stops_nothing():
    made = Daemon()
    try:
        made.paths.ledger.mkdir(parents=True)
        made.start()
        wait_until(lambda: "ready on" in made.said(), 30, "a start after the fixed delay")
        victim = made.pid("engine")
        os.kill(victim, signal.SIGKILL)
        made.pid("engine", other_than=victim)
        assert "the ledger cannot be written" in made.said()
        assert made.terminate() == 0
    finally:
        made.close()


def test_the_module_runs_without_the_installed_command():
    assert command("--help").stdout.startswith("usage: aphrodited")
    assert sys.executable in REAL_DAEMON[0]
