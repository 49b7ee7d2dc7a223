"""The units as systemd understands them, and the daemon under a real systemd in namespaces of its own."""

import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import wait_until
from tests.support.systemd_namespace import ROOT, SystemdNamespace, why_impossible
from tests.support.tiny_models import write_tiny_llama_dir

UNITS = ROOT / "systemd"
needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@needs_analyze
def test_the_units_have_no_mistakes(tmp_path):
    """With a program that exists here in place of the installed one: verify wants to see it."""
    for path in UNITS.iterdir():
        (tmp_path / path.name).write_text(
            re.sub(r"/opt/aphrodited/\.venv/bin/\w+", "/usr/bin/true", path.read_text())
        )
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    result = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@needs_analyze
def test_the_service_is_hardened():
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager"]
    result = subprocess.run([*command, str(UNITS / "aphrodited.service")], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


CONFIG = """
models:
  - name: tiny
    path: /run/given/model
    backend: "null"
    standby: 0
"""

DROP_IN = """
[Service]
ExecStart=
ExecStart={python} -m aphrodited.cli.aphrodited --config /etc/aphrodited/config.yaml
ExecReload=
ExecReload={python} -m aphrodited.cli.aphroditectl --config /etc/aphrodited/config.yaml reload --wait
WorkingDirectory={root}
Environment=PYTHONPATH={root} PYTHONDONTWRITEBYTECODE=1
# The checkout and its Python may lie in a home directory, and be readable by their owner alone.
ProtectHome=read-only
# Or under /tmp, which the unit has for itself alone.
BindReadOnlyPaths={root}
{user}
StandardOutput=append:/var/log/aphrodited.out
StandardError=append:/var/log/aphrodited.out
RestartSec=100ms
"""

CHAT = json.dumps({"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]})


def _others_can_run_us() -> bool:
    """Whether every directory on the way to this checkout and its Python is open to a user without rights."""
    places = [Path(sys.executable).resolve(), Path(sys.executable), ROOT / "aphrodited"]
    return all(folder.stat().st_mode & stat.S_IXOTH for place in places for folder in place.parents)


@pytest.fixture(scope="module")
def systemd():
    reason = why_impossible()
    if reason:
        pytest.skip(reason)
    user = "" if _others_can_run_us() else "User=root\nGroup=root"
    drop_in = DROP_IN.format(python=sys.executable, root=ROOT, user=user)
    namespace = SystemdNamespace(CONFIG, drop_in, _write_readable_model)
    yield namespace
    namespace.close()


def _write_readable_model(path):
    write_tiny_llama_dir(path, weights=False)
    for each in [path, *path.rglob("*")]:
        each.chmod(0o755)


@pytest.fixture
def unit(systemd):
    """The service stopped, the configuration in place."""
    systemd.run("cp", "/run/given/config.yaml", "/etc/aphrodited/config.yaml")
    yield systemd
    systemd.run("systemctl", "stop", "aphrodited.socket", "aphrodited.service")
    systemd.run("systemctl", "reset-failed")


def chat(namespace):
    return namespace.run(
        "curl", "-sS", "-m", "20", "http://127.0.0.1:2242/v1/chat/completions", "-H", "Content-Type: application/json", "-d", CHAT
    ).stdout


def output(namespace):
    return namespace.run("cat", "/run/console", "/var/log/aphrodited.out").stdout + namespace.log()


@pytest.mark.timeout(120)
def test_start_returns_when_a_completion_works_and_stop_leaves_nothing(unit):
    started = unit.run("systemctl", "start", "aphrodited.service")
    assert started.returncode == 0, output(unit)
    assert json.loads(chat(unit))["choices"][0]["finish_reason"] == "length", output(unit)
    assert unit.show("aphrodited.service", "StatusText") == "tiny serves"

    engine = next(line for line in unit.processes() if "workers.engine" in line)
    unit.run("kill", "-KILL", engine.split()[0])
    wait_until(lambda: "choices" in chat(unit), 30, "a chat after the engine was killed")
    assert unit.show("aphrodited.service", "NRestarts") == "0"

    stopped = unit.run("systemctl", "stop", "aphrodited.service")
    assert stopped.returncode == 0, output(unit)
    assert unit.show("aphrodited.service", "Result") == "success"
    assert unit.processes() == []
    assert unit.run("ls", "/run/aphrodited").returncode != 0


@pytest.mark.timeout(120)
def test_a_killed_daemon_is_started_again_and_nothing_of_it_remains(unit):
    assert unit.run("systemctl", "start", "aphrodited.service").returncode == 0, output(unit)
    before = unit.processes()
    main_pid = unit.show("aphrodited.service", "MainPID")
    unit.run("kill", "-KILL", main_pid)
    wait_until(
        lambda: unit.show("aphrodited.service", "ActiveState") == "active"
        and unit.show("aphrodited.service", "MainPID") != main_pid,
        40,
        "a new daemon",
    )
    assert "choices" in chat(unit)
    assert not set(before) & set(unit.processes())


@pytest.mark.timeout(120)
def test_a_wrong_configuration_fails_once_and_is_not_tried_again(unit):
    unit.run("sh", "-c", "echo 'models: 3' > /etc/aphrodited/config.yaml")
    assert unit.run("systemctl", "start", "aphrodited.service").returncode != 0
    assert unit.show("aphrodited.service", "ExecMainStatus") == "78"
    assert unit.show("aphrodited.service", "ActiveState") == "failed"
    assert unit.show("aphrodited.service", "NRestarts") == "0"


@pytest.mark.timeout(120)
def test_a_reload_brings_new_values_into_force_or_fails_and_changes_nothing(unit):
    assert unit.run("systemctl", "start", "aphrodited.service").returncode == 0, output(unit)
    main_pid = unit.show("aphrodited.service", "MainPID")
    unit.run("sh", "-c", "echo 'api: {max_choices: 2}' >> /etc/aphrodited/config.yaml")
    assert unit.run("systemctl", "reload", "aphrodited.service").returncode == 0, output(unit)
    effective = json.loads(unit.run("cat", "/run/aphrodited/effective.json").stdout)
    assert effective["api"]["max_choices"] == 2
    assert "choices" in chat(unit)
    unit.run("sh", "-c", "echo 'logging: {level: debug}' >> /etc/aphrodited/config.yaml")
    as_root = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "aphrodited.cli.aphroditectl")
    assert unit.run(*as_root, "--config", "/etc/aphrodited/config.yaml", "reload", "--wait").returncode == 0
    owners = unit.run("stat", "-c", "%u %a", "/run/aphrodited/daemon.lock", "/run/aphrodited/effective.json").stdout
    assert len(set(owners.splitlines())) == 1, owners
    unit.run("sh", "-c", "echo 'nonsense: 1' >> /etc/aphrodited/config.yaml")
    assert unit.run("systemctl", "reload", "aphrodited.service").returncode != 0
    assert "nonsense: unknown key" in output(unit)
    unit.run("kill", "-HUP", main_pid)
    wait_until(lambda: "the reload failed with exit code 78" in output(unit), 30, "the refusal of SIGHUP")
    wait_until(lambda: unit.show("aphrodited.service", "ActiveState") == "active", 30, "the end of the reload")
    assert unit.show("aphrodited.service", "MainPID") == main_pid
    assert "choices" in chat(unit)


@pytest.mark.timeout(120)
def test_with_the_socket_unit_a_request_waits_while_the_daemon_restarts(unit):
    assert unit.run("systemctl", "start", "aphrodited.socket").returncode == 0, output(unit)
    assert "choices" in chat(unit), output(unit)  # the connection itself started the service
    assert unit.run("systemctl", "--no-block", "restart", "aphrodited.service").returncode == 0
    for _ in range(3):
        assert "choices" in chat(unit)
