"""The real supervisor, launcher and plugin with workers that only pretend: what dies comes back, what stops is gone."""

import os
import signal
import socket
import time

import pytest

from aphrodited.config.loader import read_effective
from aphrodited.page import read_page
from aphrodited.paths import engine_program
from aphrodited.supervision.ledger import Reset, stamp
from aphrodited.supervision.program_state import LaunchState
from tests.support.daemons import CONFIG, Daemon, children_of, is_alive, wait_until

ENGINE = "engine-8950abfd-0"
OTHER_ENGINE = engine_program("other", 0)


@pytest.fixture
def make_daemon():
    daemons = []

    def make(config=CONFIG):
        daemons.append(Daemon(config))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.close()


@pytest.fixture
def daemon(make_daemon):
    return make_daemon()


@pytest.mark.parametrize("prefix", ["engine", "api-0", "monitor"])
def test_a_killed_process_comes_back_and_its_death_is_in_the_ledger(daemon, prefix):
    daemon.behave(ENGINE, "work")
    daemon.start_ready()
    before = daemon.pids()
    victim = daemon.pid(prefix)
    os.kill(victim, signal.SIGKILL)
    daemon.pid(prefix, other_than=victim)
    (death,) = daemon.deaths(prefix)
    assert (death.pid, death.signal, death.requested) == (victim, "SIGKILL", False)
    assert death.cause == "killed by SIGKILL while ready"
    others = {name: pid for name, pid in before.items() if not name.startswith(prefix)}
    assert others.items() <= daemon.pids().items()
    assert f"died (pid {victim}" in daemon.said()


def test_a_life_that_did_something_is_followed_at_once(daemon):
    daemon.behave(ENGINE, "work")
    daemon.start_ready()
    for _ in range(5):
        victim = daemon.pid("engine")
        _wait_for_work(daemon, victim)
        os.kill(victim, signal.SIGKILL)
        daemon.pid("engine", other_than=victim)
    assert "launch_delayed" not in daemon.log(ENGINE)
    assert [death.num_finished for death in daemon.deaths("engine")] == [1] * 5


def _wait_for_work(daemon, pid):
    def has_worked():
        page = read_page(daemon.paths.page(ENGINE))
        return page is not None and page.pid == pid and page.num_finished > 0

    wait_until(has_worked, what="work")


def test_the_port_answers_while_an_api_worker_is_replaced(daemon):
    daemon.start_ready()
    for _ in range(3):
        os.kill(daemon.pid("api-0"), signal.SIGKILL)
        for _ in range(10):
            assert "api-" in daemon.ask()


def test_what_a_dead_process_left_in_its_group_is_killed_before_the_next_life(daemon):
    daemon.behave(ENGINE, "work", "child")
    daemon.start_ready()
    engine = daemon.pid("engine")
    wait_until(lambda: children_of(engine))
    (child,) = children_of(engine)
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: not is_alive(child), what="end of the grandchild")
    daemon.pid("engine", other_than=engine)


def test_a_crash_looping_program_is_parked_and_the_others_serve(daemon):
    daemon.behave(ENGINE, "crash")
    daemon.start()
    wait_until(lambda: (state := daemon.state(ENGINE)) and state.state is LaunchState.PARKED, what="parked")
    assert daemon.log(ENGINE).count("life of") == 3
    state = daemon.state(ENGINE)
    assert "died 3 times in a row before it did anything" in state.reason
    assert state.num_strikes == 3
    wait_until(lambda: "no model serves" in daemon.said())
    assert "api-" in daemon.ask()
    assert len(daemon.deaths("engine")) == 3


def test_a_parked_program_is_probed_on_its_schedule_while_another_model_serves(make_daemon):
    """After 1.2 and 2.4 s, then each 2.4 s; a reset does not wait for the next one."""
    config = CONFIG.replace("api:", "  - {{name: other, path: none, backend: 'null', standby: 0}}\napi:", 1)
    daemon = make_daemon(config.replace("recovery: {{", "recovery: {{probe_minutes: [0.02, 0.04], ", 1))
    daemon.behave(ENGINE, "crash")
    daemon.start_ready()
    bystander = daemon.pid(OTHER_ENGINE)
    wait_until(lambda: len(daemon.deaths(ENGINE)) == 6, what="three strikes and three probes")
    instants = [death.at_s for death in daemon.deaths(ENGINE)]
    probes_s = [at_s - instants[2] for at_s in instants[3:]]
    assert probes_s[0] >= 1.2
    assert probes_s[1] >= 2.4
    assert probes_s[2] >= 4.8
    wait_until(lambda: (state := daemon.state(ENGINE)) and state.state is LaunchState.PARKED, what="parked again")
    assert daemon.state(ENGINE).reason == "still parked: failed with an exception while starting"
    assert daemon.pid(OTHER_ENGINE) == bystander
    assert "api-" in daemon.ask()
    daemon.behave(ENGINE, "work")
    daemon.ledger.append(Reset(**stamp(ENGINE)))
    wait_until(lambda: "the engine of tiny is ready" in daemon.said())


def test_exit_78_parks_at_once_with_the_reason_from_the_page(daemon):
    daemon.behave(ENGINE, "config")
    daemon.start()
    wait_until(lambda: "is parked: model.gguf: no such file" in daemon.said())
    assert daemon.log(ENGINE).count("life of") == 1


@pytest.mark.parametrize("how", ["reset", "signal"])
def test_a_parked_program_is_tried_again_when_somebody_asks(daemon, how):
    daemon.behave(ENGINE, "config")
    daemon.start()
    wait_until(lambda: "is parked" in daemon.said())
    daemon.behave(ENGINE, "work")
    if how == "reset":
        daemon.ledger.append(Reset(**stamp(ENGINE)))
    else:
        daemon.client.signal(ENGINE, signal.SIGUSR1)
    wait_until(lambda: "the engine of tiny is ready" in daemon.said())


def test_a_stopped_launcher_is_killed_and_its_successor_waits_on(daemon):
    daemon.behave(ENGINE, "config")
    daemon.start()
    wait_until(lambda: "is parked" in daemon.said())
    launcher = daemon.pid(ENGINE)
    os.kill(launcher, signal.SIGSTOP)
    assert daemon.pid(ENGINE, other_than=launcher) != launcher
    assert "ago, before it did anything; it is killed" in daemon.said()
    wait_until(lambda: daemon.state(ENGINE).pid != launcher, what="what the next launcher says")
    assert daemon.state(ENGINE).state is LaunchState.PARKED


def test_stop_and_start_work_while_a_program_is_parked(daemon):
    daemon.behave(ENGINE, "config")
    daemon.start()
    wait_until(lambda: "is parked" in daemon.said())
    daemon.client.stop(ENGINE)
    assert daemon.pids()[ENGINE] == 0
    daemon.behave(ENGINE, "work")
    daemon.client.start(ENGINE)
    wait_until(lambda: "the engine of tiny is ready" in daemon.said())


def test_the_daemon_stops_at_once_during_back_off(make_daemon):
    daemon = make_daemon(CONFIG.replace("strike_delay_s: 0.2", "strike_delay_s: 60"))
    daemon.behave(ENGINE, "crash")
    daemon.start()
    wait_until(lambda: "starts again later" in daemon.said())
    assert daemon.terminate() == 0
    assert daemon.deaths("engine")[-1].requested


def test_sigterm_ends_everything_and_leaves_nothing(daemon):
    daemon.start_ready()
    pids = daemon.pids().values()
    assert daemon.terminate() == 0
    assert not [pid for pid in pids if is_alive(pid)]
    assert [path.name for path in daemon.paths.runtime_dir.iterdir()] == ["daemon.lock"]
    assert all(death.requested for death in daemon.deaths())
    assert daemon.said().endswith("aphrodited: stopped\n")


def test_api_workers_stop_before_engines_and_the_monitor_last(daemon):
    daemon.start_ready()
    daemon.terminate()
    order = [death.program.split("-")[0] for death in daemon.deaths()]
    assert order == ["api", "api", "engine", "monitor"]


def test_a_second_sigterm_kills_what_does_not_stop(make_daemon):
    daemon = make_daemon(CONFIG.replace("drain_timeout_s: 3", "drain_timeout_s: 600"))
    daemon.behave("api-0", "deaf")
    daemon.behave(ENGINE, "child")
    daemon.start_ready()
    pids = [*daemon.pids().values(), *children_of(daemon.pid("engine"))]
    daemon.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping" in daemon.said())
    time.sleep(0.6)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 0
    assert not [pid for pid in pids if is_alive(pid)]
    assert all(death.requested for death in daemon.deaths())


def test_one_sigterm_delivered_twice_is_one(daemon):
    daemon.start_ready()
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(10) == 0
    assert "at once: every process" not in daemon.said()


def test_a_worker_that_ignores_sigterm_is_killed_in_time(make_daemon):
    daemon = make_daemon(CONFIG.replace("engine_stop_timeout_s: 3", "engine_stop_timeout_s: 1"))
    daemon.behave(ENGINE, "deaf")
    daemon.start_ready()
    assert daemon.terminate() == 0
    (death,) = daemon.deaths("engine")
    assert (death.signal, death.requested) == ("SIGKILL", True)
    assert "did not stop in time" in death.cause


def test_kill_9_of_the_supervisor_takes_every_child_along_and_the_next_daemon_starts(daemon):
    daemon.behave(ENGINE, "child")
    daemon.start_ready()
    port, pids = daemon.port, list(daemon.pids().values())
    (grandchild,) = children_of(daemon.pid("engine"))
    daemon.process.kill()
    daemon.process.wait()
    wait_until(lambda: not [pid for pid in pids if is_alive(pid)], what="end of the children")
    assert is_alive(grandchild)
    daemon.start(f"--set=api.port={port}")
    daemon.wait_ready()
    assert "an earlier daemon of this configuration left behind" in daemon.said()
    assert not is_alive(grandchild)
    assert "api-" in daemon.ask()


def test_sighup_reloads_the_file_and_restarts_nothing_without_need(daemon):
    daemon.start_ready()
    before = daemon.pids()
    daemon.config.write_text(daemon.config.read_text().replace("loop_hang_s: 2", "loop_hang_s: 3"))
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "aphrodited: reloaded" in daemon.said(), what="the reload")
    assert "recovery.loop_hang_s: 2 -> 3  (at once)" in daemon.said()
    assert read_effective(daemon.paths.effective_config).recovery.loop_hang_s == 3
    assert daemon.pids() == before


def test_sighup_with_a_wrong_file_changes_nothing(daemon):
    daemon.start_ready()
    before = daemon.pids()
    daemon.config.write_text("models: 3")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "the reload failed with exit code 78" in daemon.said(), what="the refusal")
    assert "config.yaml:1:9: models: expected a list" in daemon.said()
    assert daemon.pids() == before


def test_sighups_while_it_starts_are_ignored(daemon):
    daemon.start()
    wait_until(lambda: "starting tiny" in daemon.said())
    while "ready on" not in daemon.said():
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(0.005)
    assert not daemon.deaths()


def test_a_monitor_whose_loop_stands_still_is_killed(daemon):
    daemon.start_ready()
    victim = daemon.pid("monitor")
    os.kill(victim, signal.SIGSTOP)
    daemon.pid("monitor", other_than=victim)
    (death,) = daemon.deaths("monitor")
    assert death.cause.startswith("hang: its event loop stood still")


def test_two_daemons_of_two_configurations_do_not_see_each_other(make_daemon):
    first, second = make_daemon(), make_daemon()
    first.start_ready()
    second.start_ready()
    assert first.port != second.port
    assert not set(first.pids().values()) & set(second.pids().values())
    assert second.terminate() == 0
    assert "api-" in first.ask()
    assert not first.deaths()


def test_the_same_configuration_twice_is_refused_and_the_first_lives_on(daemon):
    daemon.start_ready()
    first = daemon.process
    second = daemon.start()
    assert second.wait(10) == 75
    assert f"running already: pid {first.pid}" in daemon.said()
    assert len(daemon.pids()) == 4
    daemon.process = first


def test_a_port_in_use_is_said(daemon):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert daemon.start(f"--set=api.port={port}").wait(10) == 75
    assert f"port {port} on 127.0.0.1 is in use by another program" in daemon.said()


def test_a_bad_configuration_exits_78_with_every_problem(daemon):
    daemon.config.write_text("models: []\napi: {prot: 1}\n")
    assert daemon.start().wait(10) == 78
    assert "api.prot" in daemon.said()
    assert "models" in daemon.said()


def test_children_inherit_no_descriptor_but_the_listening_socket(daemon):
    daemon.start_ready()
    for prefix, expected in (("engine", 0), ("monitor", 0), ("api-1", 1)):
        pid = daemon.pid(prefix)
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if int(fd) > 2]
        assert len([link for link in links if link.startswith(("socket", "pipe"))]) == expected, links
