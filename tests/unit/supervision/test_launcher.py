import os
import signal
import subprocess
import sys

import pytest

from aphrodited.config.loader import write_effective
from aphrodited.config.schema import Config, ModelConfig, PathsConfig
from aphrodited.supervision.launcher import (
    DAEMON_PID_VARIABLE,
    LaunchOptions,
    is_group_alive,
    parse_options,
    read_config,
)
from tests.support.daemons import is_alive, wait_until

CODE = "import sys; from aphrodited.supervision.launcher import *; "


def run(code, **options):
    return subprocess.run([sys.executable, "-c", CODE + code], capture_output=True, text=True, timeout=30, **options)


def test_options_are_read(tmp_path):
    arguments = ["--runtime-dir", str(tmp_path), "--program", "api-0"]
    assert parse_options(arguments) == LaunchOptions(tmp_path, "api-0")
    assert parse_options([*arguments, "--listen-fd", "3"]) == LaunchOptions(tmp_path, "api-0", 3)


@pytest.mark.parametrize("arguments", [["--runtime-dir"], ["--help", "x"], ["--program", "a", "--program", "b"]])
def test_anything_else_is_refused(arguments):
    with pytest.raises(SystemExit, match="usage"):
        parse_options(arguments)


def test_the_configuration_is_read_without_yaml(tmp_path):
    paths = PathsConfig(str(tmp_path), str(tmp_path / "log"), str(tmp_path / "state"))
    config = Config(models=(ModelConfig("m", "p"),), paths=paths)
    write_effective(config, tmp_path / "effective.json")
    found_paths, found = read_config(tmp_path)
    assert found == config
    assert found_paths is not None
    assert found_paths.ledger == tmp_path / "state/ledger.jsonl"
    loaded = run("print([m for m in ('yaml', 'structlog', 'zmq', 'torch', 'supervisor', 'asyncio') if m in sys.modules])")
    assert loaded.stdout == "[]\n"


def test_an_unreadable_configuration_is_no_exception(tmp_path):
    assert read_config(tmp_path) == (None, None)
    (tmp_path / "effective.json").write_text("{}")
    assert read_config(tmp_path) == (None, None)


def test_only_the_listening_socket_survives():
    first, keep = os.pipe()
    result = run(
        f"close_files({keep}); print([fd for fd in {[first, keep]} if os.path.exists(f'/proc/self/fd/{{fd}}')])",
        pass_fds=(first, keep),
    )
    os.close(first)
    os.close(keep)
    assert result.stdout == f"[{keep}]\n"


def test_a_launcher_whose_supervisor_is_gone_ends_at_once():
    result = run("die_with_supervisor(); print('alive')", env={**os.environ, DAEMON_PID_VARIABLE: "1"})
    assert result.stdout == ""
    assert result.returncode == 75


def test_a_child_dies_with_its_parent():
    outer = (
        "import subprocess, sys, os; child = subprocess.Popen([sys.executable, '-c', "
        f"{CODE + 'die_with_supervisor(); print(os.getpid(), flush=True); time.sleep(60)'!r}]); child.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert process.stdout.read() == ""  # until the child has closed its end too
    process.stdout.close()
    wait_until(lambda: not is_alive(child), 5)


def test_a_group_lives_as_long_as_one_member_does():
    process = subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True)
    assert is_group_alive(process.pid)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not is_group_alive(process.pid), 5)


def test_without_a_configuration_the_launcher_waits_and_asks_to_be_tried_again(tmp_path):
    code = (
        "import aphrodited.supervision.launcher as module; module.BLIND_DELAY_S = 0.1; "
        f"launch(['--runtime-dir', {str(tmp_path)!r}, '--program', 'api-0'], None)"
    )
    environment = {name: value for name, value in os.environ.items() if name != DAEMON_PID_VARIABLE}
    result = run(code, env=environment)
    assert result.returncode == 75
    assert '"event":"launch_failed"' in result.stdout


@pytest.mark.parametrize(("program", "is_bound"), [("engine", True), ("api", True), ("monitor", False)])
def test_engines_and_api_workers_keep_to_their_cpus(program, is_bound):
    cpu = max(os.sched_getaffinity(0))
    result = run(
        "from aphrodited.config.schema import *; import os; "
        f"model = ModelConfig('m', 'p', engine=EngineConfig(cpus='{cpu}')); "
        f"config = Config(models=(model,), api=ApiConfig(cpus='{cpu}')); "
        f"set_cpus(config, next(p for p in programs(config) if p.role == '{program}')); "
        "print(sorted(os.sched_getaffinity(0)))"
    )
    assert result.stdout == f"{[cpu] if is_bound else sorted(os.sched_getaffinity(0))}\n"


def test_cpus_that_cannot_be_had_are_said_and_change_nothing():
    result = run(
        "from aphrodited.config.schema import *; import os; before = os.sched_getaffinity(0); "
        "config = Config(models=(ModelConfig('m', 'p'),), api=ApiConfig(cpus='9999')); "
        "set_cpus(config, next(p for p in programs(config) if p.role == 'api')); "
        "assert os.sched_getaffinity(0) == before"
    )
    assert result.returncode == 0
    assert "cpus_unset" in result.stdout
