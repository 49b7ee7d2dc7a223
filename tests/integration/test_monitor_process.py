"""The monitor as a process of its own, over pages, launcher states and a ledger that the test writes."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from aphrodited.config.loader import write_effective
from aphrodited.config.schema import Config, ModelConfig, MonitorConfig, PathsConfig
from aphrodited.mq.codec import decode_event
from aphrodited.mq.messages import EventKind
from aphrodited.page import PageWriter, Phase, read_page
from aphrodited.paths import MONITOR_PROGRAM, DaemonPaths, engine_program
from aphrodited.procfs import resident_bytes
from aphrodited.supervision.ledger import Death, Ledger, Ready, Reset, stamp
from tests.support.daemons import wait_until

ENGINE = engine_program("demo", 0)


class MonitorProcess:
    def __init__(self, folder: Path, port: int = 0) -> None:
        self.paths = DaemonPaths(folder / "run", folder / "log", folder / "state")
        for path in (self.paths.runtime_dir, self.paths.log_dir, self.paths.state_dir):
            path.mkdir(exist_ok=True)
        config = Config(
            models=(ModelConfig("demo", "/nowhere", backend="null"),),
            monitor=MonitorConfig(port=port, interval_s=0.05),
            paths=PathsConfig(*map(str, (self.paths.runtime_dir, self.paths.log_dir, self.paths.state_dir))),
        )
        write_effective(config, self.paths.effective_config)
        self.ledger = Ledger(self.paths.ledger)
        self.log = folder / "monitor.log"
        self.start()

    def start(self) -> None:
        arguments = ["--runtime-dir", str(self.paths.runtime_dir), "--program", MONITOR_PROGRAM]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "aphrodited.workers.monitor", *arguments], stderr=log)
        wait_until(lambda: self.page() and self.page().num_finished, what="the first round")

    def page(self):
        page = read_page(self.paths.page(MONITOR_PROGRAM))
        return page if page and page.pid == self.process.pid else None

    def ask(self, path, method="GET", *, admin=False, body=None):
        if admin:
            connection = http.client.HTTPConnection("localhost")
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(str(self.paths.admin_socket))
        else:
            wait_until(lambda: self.page().message.startswith("listening on"), what="the port")
            connection = http.client.HTTPConnection("127.0.0.1", int(self.page().message.rpartition(":")[2]), timeout=10)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def json(self, path, method="GET", *, admin=False, body=None):
        status, answer = self.ask(path, method, admin=admin, body=body)
        return status, json.loads(answer)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def monitor(tmp_path):
    monitor = MonitorProcess(tmp_path)
    yield monitor
    monitor.close()


@pytest.fixture
def engine_page(monitor):
    """This test is the engine: the page is of its own process."""
    page = PageWriter(monitor.paths.page(ENGINE))
    yield page
    page.close()


@pytest.fixture
def subscriber(monitor):
    """Receives events, and is known to do so."""
    context = zmq.Context()
    socket_ = context.socket(zmq.SUB)
    socket_.subscribe(b"")
    socket_.connect(monitor.paths.events_endpoint)
    until_s = time.monotonic() + 10
    while not socket_.poll(50) and time.monotonic() < until_s:
        monitor.ledger.append(Death(**stamp(ENGINE), pid=1, uptime_s=1, cause="probe", model="demo"))
    while socket_.poll(300):
        socket_.recv()
    yield socket_
    socket_.close(linger=0)
    context.term()


def test_health_endpoints_follow_the_engine(monitor, engine_page):
    assert monitor.json("/livez")[0] == 200
    status, body = monitor.json("/readyz")
    assert (status, body["ready"], body["models"]) == (503, False, {"demo": {"state": "starting"}})
    engine_page.update(phase=Phase.READY, generation=1)
    for path in ("/readyz", "/health", "/readyz?model=demo"):
        assert monitor.json(path) == (200, {"ready": True, "models": {"demo": {"state": "ready"}}, "parked": []})
    assert monitor.json("/readyz?model=nothing")[0] == 404
    assert monitor.json("/version")[1]["version"]


def test_errors_are_error_objects(monitor):
    status, body = monitor.json("/nowhere")
    assert (status, body["error"]["code"]) == (404, "not_found")
    assert "/nowhere" in body["error"]["message"]
    assert monitor.json("/livez", "POST")[0] == 405


def test_status_and_metrics(monitor, engine_page):
    engine_page.update(phase=Phase.READY, generation=1, num_running=3)
    for admin in (False, True):
        status, body = monitor.json("/status", admin=admin)
        assert status == 200
        assert (body["ready"], body["state"]) == (False, "down")  # there is no supervisor here
        assert body["models"][0]["state"] == "ready"
    text = monitor.ask("/metrics")[1].decode()
    assert f'aphrodited_process_running{{program="{ENGINE}"}} 3.0' in text


def test_reset_is_for_the_admin_socket_and_goes_to_the_ledger(monitor):
    assert monitor.json("/reset?role=demo", "POST")[0] == 404
    assert monitor.json("/reset?role=demo", "POST", admin=True) == (200, {"reset": [ENGINE]})
    assert [entry.program for entry in monitor.ledger.read() if isinstance(entry, Reset)] == [ENGINE]
    status, body = monitor.json("/reset?role=nothing", "POST", admin=True)
    assert status == 400
    assert "nothing" in body["error"]["message"]


def test_orders_are_for_the_admin_socket_and_need_a_daemon(monitor):
    order = {"model": "demo"}
    assert monitor.json("/model/unload", "POST", body=order)[0] == 404
    for path, body, status, code in (
        ("/model/load", order, 503, "supervisor_down"),
        ("/model/load?wait=x", order, 400, "invalid_request_error"),
        ("/model/load?wait=601", order, 400, "invalid_request_error"),
        ("/model/load", {"model": "nobody"}, 404, "not_found"),
        ("/model/load", {}, 400, "invalid_request_error"),
        ("/model/forget", order, 404, "not_found"),
    ):
        answered, answer = monitor.json(path, "POST", admin=True, body=body)
        assert (answered, answer["error"]["code"]) == (status, code)
    assert monitor.json("/readyz", admin=True)[1]["models"]["demo"]["state"] == "stopped"


def test_a_death_in_the_ledger_is_published_with_its_cause(monitor, subscriber):
    death = Death(**stamp(ENGINE), pid=4711, uptime_s=1, generation=3, cause="killed by SIGKILL", model="demo")
    monitor.ledger.append(death)
    assert subscriber.poll(10_000)
    event = decode_event(subscriber.recv())
    assert (event.kind, event.model, event.generation, event.pid, event.cause) == (
        EventKind.ENGINE_DEAD, "demo", 3, 4711, "killed by SIGKILL",
    )  # fmt: skip


def test_an_engine_that_becomes_ready_is_published_and_written_down(monitor, subscriber, engine_page):
    engine_page.update(phase=Phase.READY, generation=7)
    assert subscriber.poll(10_000)
    event = decode_event(subscriber.recv())
    assert (event.kind, event.generation, event.pid) == (EventKind.ENGINE_READY, 7, os.getpid())
    assert [entry.generation for entry in monitor.ledger.read() if isinstance(entry, Ready)] == [7]


def test_sigterm_ends_it_cleanly_and_at_once(monitor):
    monitor.process.terminate()
    assert monitor.process.wait(10) == 0
    assert not monitor.paths.admin_socket.exists()
    assert "monitor_stopped" in monitor.log.read_text()


def test_sigusr2_writes_the_stacks(monitor):
    monitor.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: "most recent call first" in monitor.log.read_text(), what="the stacks")
    assert monitor.json("/livez")[0] == 200


def test_a_killed_monitor_leaves_nothing_in_the_way_of_the_next(monitor):
    monitor.close()
    monitor.start()
    assert monitor.json("/livez")[0] == 200
    assert monitor.json("/livez", admin=True)[0] == 200


def test_a_port_that_is_taken_is_said_while_everything_else_works(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monitor = MonitorProcess(tmp_path, taken.getsockname()[1])
        try:
            wait_until(lambda: "cannot be opened" in monitor.page().message, what="the complaint")
            assert monitor.json("/livez", admin=True)[0] == 200
            assert "port_unavailable" in monitor.log.read_text()
        finally:
            monitor.close()


def test_it_stays_small(monitor):
    loaded = Path(f"/proc/{monitor.process.pid}/maps").read_text()
    assert "torch" not in loaded
    assert "tokenizers" not in loaded
    for path in ("/status", "/metrics", "/readyz"):
        monitor.ask(path)
    assert resident_bytes(monitor.process.pid) <= 60 * 1024**2
