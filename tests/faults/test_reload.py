"""`aphroditectl reload` on a real daemon under continuous load: new values in force, no request failed."""

import http.client
import json
import os
import re
import signal
import threading
import time

import pytest

from aphrodited.cli.aphroditectl import main as aphroditectl
from aphrodited.config.loader import read_effective
from aphrodited.paths import MONITOR_PROGRAM, engine_program
from aphrodited.supervision.ledger import Reload, Reset
from tests.support.daemons import wait_until
from tests.support.real_daemon import RealDaemon

ENGINES = [engine_program("tiny", index) for index in range(2)]


class Load:
    """Requests from a few threads without a pause; keeps every answer that is not 200."""

    def __init__(self, daemon, num_threads=3):
        self.failures = []
        self.num_answers = 0
        self._daemon = daemon
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(num_threads)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def _run(self):
        while not self._stop.is_set():
            try:
                status, body = self._daemon.complete(max_tokens=5)
            except OSError as error:
                status, body = 0, repr(error)
            self.num_answers += 1
            if status != 200:
                self.failures.append((status, body))

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


@pytest.fixture(scope="module")
def shared():
    daemon = RealDaemon(standby=1, on_death="resume")
    daemon.start_serving()
    wait_for_standby(daemon)
    yield daemon
    daemon.close()


@pytest.fixture
def daemon(shared):
    """One daemon for the module; each test changes other keys, and leaves it serving."""
    shared.wait_serving()
    wait_for_standby(shared)
    return shared


def wait_for_standby(daemon):
    wait_until(lambda: daemon.status().models[0].num_standby == 1, 40, "a standby")


def change(daemon, old, new):
    text = daemon.config.read_text()
    assert old in text
    daemon.config.write_text(text.replace(old, new, 1))


def reload(daemon, *options):
    return aphroditectl(["--config", str(daemon.config), "reload", *options])


def effective(daemon):
    return read_effective(daemon.paths.effective_config)


def test_under_load_every_kind_of_change_comes_into_force_and_no_request_fails(daemon, capsys):
    before = daemon.pids()
    change(daemon, "drain_timeout_s: 3", "drain_timeout_s: 4, max_choices: 2")
    change(daemon, "interval_s: 0.2", "interval_s: 0.25")
    change(daemon, "standby: 1}", "standby: 1, engine: {max_num_seqs: 7}}")
    daemon.config.write_text(daemon.config.read_text() + "logging: {level: debug}\n")
    with Load(daemon) as load:
        wait_until(lambda: load.num_answers > 10, what="load")
        assert reload(daemon, "--wait") == 0
        answers = load.num_answers
        wait_until(lambda: load.num_answers > answers + 10, what="more load")
    assert load.failures == []
    shown = capsys.readouterr().out
    assert "models[0].engine.max_num_seqs: 256 -> 7  (replaces the engines)" in shown
    assert "logging.level: info -> debug  (at once)" in shown
    after = daemon.pids()
    assert all(before[name] != after[name] for name in before)
    assert effective(daemon).models[0].engine.max_num_seqs == 7
    assert effective(daemon).api.port == daemon.port != 0
    assert daemon.paths.effective_config.stat().st_mode & 0o777 == 0o600
    assert daemon.complete(n=3)[0] == 400  # more than max_choices
    wait_for_standby(daemon)
    (entry,) = [entry for entry in daemon.ledger.read() if isinstance(entry, Reload)]
    assert entry.by == f"uid {os.getuid()}"
    assert "api.max_choices: 16 -> 2" in entry.changes.splitlines()
    assert all(death.requested for death in daemon.deaths())


def test_a_hot_value_reaches_every_process_without_a_restart(daemon):
    before = daemon.pids()
    level = effective(daemon).logging.level
    new = "warning" if level != "warning" else "error"
    text = re.sub(r"logging: .*\n", "", daemon.config.read_text())
    daemon.config.write_text(f"{text}logging: {{level: {new}}}\n")
    assert reload(daemon, "--wait") == 0
    assert daemon.pids() == before
    time.sleep(0.5)
    sizes = {name: len(daemon.log(name)) for name in before}
    assert daemon.complete()[0] == 200
    assert {name: len(daemon.log(name)) for name in before} == sizes


def test_sighup_is_a_reload(daemon):
    before = daemon.pids()
    change(daemon, "max_deaths: 100", "max_deaths: 101")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: effective(daemon).recovery.max_deaths == 101, what="the new value")
    wait_until(lambda: "aphrodited: reloaded" in daemon.said(), what="the end of the reload")
    assert "recovery.max_deaths: 100 -> 101  (at once)" in daemon.said()
    assert daemon.pids() == before


def test_without_wait_the_daemon_carries_it_out(daemon, capsys):
    change(daemon, "max_deaths: 10", "max_deaths: 20")  # 101 becomes 201
    assert reload(daemon) == 0
    assert "max_deaths" in capsys.readouterr().out
    wait_until(lambda: effective(daemon).recovery.max_deaths >= 200, what="the new value")


def test_a_wrong_file_changes_nothing_and_says_every_problem(daemon, capsys):
    good, before = daemon.config.read_text(), effective(daemon)
    daemon.config.write_text(good.replace("max_deaths: ", "max_strikes: lots, max_daeths: "))
    assert reload(daemon, "--wait") == 78
    said = capsys.readouterr().err
    assert "max_strikes" in said
    assert "max_daeths: unknown key; did you mean max_deaths?" in said
    assert effective(daemon) == before
    daemon.config.write_text(good)


def test_what_needs_a_full_restart_is_refused_with_its_key_and_left_out_on_request(daemon, capsys):
    good, before, pids = daemon.config.read_text(), effective(daemon), daemon.pids()
    daemon.config.write_text(good.replace("workers: 2", "workers: 3").replace("ladder_step_s: 0.5", "ladder_step_s: 0.6"))
    assert reload(daemon, "--wait") == 1
    told = capsys.readouterr()
    assert "api.workers: 2 -> 3  (needs a full restart)" in told.out
    assert "nothing was applied: api.workers need" in told.err
    assert effective(daemon) == before
    assert reload(daemon, "--partial") == 0
    assert effective(daemon).recovery.ladder_step_s == 0.6
    assert effective(daemon).api.workers == 2
    assert daemon.pids() == pids
    assert reload(daemon, "--dry-run") == 1  # still there, still refused
    daemon.config.write_text(good.replace("ladder_step_s: 0.5", "ladder_step_s: 0.6"))
    capsys.readouterr()
    assert reload(daemon, "--dry-run") == 0
    assert capsys.readouterr().err.endswith("nothing has changed\n")


def test_values_with_which_an_engine_cannot_load_are_taken_back_and_the_active_one_serves_on(daemon, capsys):
    good, before = daemon.config.read_text(), effective(daemon)
    active = next(p for p in daemon.status().processes if p.name in ENGINES and p.state == "ready")
    daemon.config.write_text(good.replace("engine: {max_num_seqs: 7}", "engine: {max_num_seqs: 7}, max_model_len: 9999"))
    with Load(daemon) as load:
        assert reload(daemon, "--wait") == 1
    assert load.failures == []
    said = capsys.readouterr().err
    assert "did not come up" in said
    assert "taken back: models[0].max_model_len: auto -> 9999" in said
    assert effective(daemon) == before
    wait_for_standby(daemon)
    assert daemon.process_status(active.name).pid == active.pid
    assert [entry.undone != "" for entry in daemon.ledger.read() if isinstance(entry, Reload)][-1]
    daemon.config.write_text(good)


def test_new_contents_of_a_key_file_hold_and_are_never_shown(daemon, capsys):
    good = daemon.config.read_text()
    keys = daemon.folder / "keys"
    keys.write_text("first-secret\n")
    keys.chmod(0o600)
    daemon.config.write_text(good.replace("api: {", f"api: {{keys_file: {keys}, "))
    assert reload(daemon, "--wait") == 0
    assert daemon.complete()[0] == 401
    engine = daemon.pid(ENGINES[0])
    keys.write_text("second-secret\n")
    assert reload(daemon, "--wait") == 0
    told = capsys.readouterr()
    assert "other contents" in told.out
    assert "secret" not in told.out + told.err
    assert status_with_key(daemon, "first-secret") == 401
    assert status_with_key(daemon, "second-secret") == 200
    assert daemon.pid(ENGINES[0]) == engine
    daemon.config.write_text(good)
    assert reload(daemon, "--wait") == 0


def status_with_key(daemon, key):
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=10)
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_reload_that_was_cut_short_is_taken_up_again(daemon, capsys):
    given = daemon.paths.given
    contents = json.loads(given.read_bytes())
    contents["pending"] = [MONITOR_PROGRAM]
    given.write_text(json.dumps(contents))
    monitor = daemon.pid("monitor")
    assert reload(daemon, "--wait") == 0
    assert "an earlier reload has yet to restart monitor" in capsys.readouterr().err
    assert daemon.pid("monitor", other_than=monitor)
    assert json.loads(given.read_bytes())["pending"] == []


def test_without_a_standby_requests_wait_for_the_engine_with_the_new_values():
    daemon = RealDaemon(standby=0, on_death="resume")
    try:
        daemon.start_serving()
        stream = daemon.open_stream(max_tokens=600)
        wait_until(lambda: stream.num_events, what="a first token")
        change(daemon, "standby: 0}", "standby: 0, engine: {max_num_seqs: 7}}")
        with Load(daemon) as load:
            assert reload(daemon, "--wait") == 0
        stream.wait(40)
        assert load.failures == []
        assert stream.error is None
        assert stream.is_done
        assert len(daemon.deaths(ENGINES[0])) == 1
    finally:
        daemon.close()


def test_a_parked_program_is_tried_again_by_a_reload_that_mends_it():
    daemon = RealDaemon(recovery="probe_minutes: [60]")
    try:
        good = daemon.config.read_text()
        daemon.config.write_text(good.replace("standby: 0}", "standby: 0, max_model_len: 9999}"))
        daemon.start()
        wait_until(lambda: daemon.engine().state == "parked", 40, "parked")
        daemon.config.write_text(good)
        assert reload(daemon, "--wait") == 0
        daemon.wait_serving()
        assert [e.program for e in daemon.ledger.read() if isinstance(e, Reset)] == [ENGINES[0]]
    finally:
        daemon.close()
