"""Real processes: models are unloaded, loaded and drained, at the API's port and by the operator's command."""

import http.client
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from aphrodited.cli.aphroditectl import main as aphroditectl
from aphrodited.paths import MONITOR_PROGRAM, engine_program
from aphrodited.supervision.ledger import Order, Ready
from tests.support.daemons import is_alive, wait_until
from tests.support.real_daemon import real_daemon

pytestmark = pytest.mark.timeout(180)
ENGINES = {engine_program("tiny", 0), engine_program("tiny", 1)}


@pytest.fixture(scope="module")
def shared():
    with real_daemon("tiny", "other", standby=1, on_death="resume") as daemon:
        yield daemon


@pytest.fixture
def daemon(shared):
    """One daemon for the module: each test begins with both models served, each with a standby."""
    wait_until(lambda: all(model.num_standby == 1 for model in shared.status().models), 60, "the standbys")
    shared.wait_serving()
    return shared


def order(daemon, path, **body):
    """POST to the API's port."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def ctl(daemon, *words):
    return aphroditectl(["--config", str(daemon.config), *words])


def model(daemon, name="tiny"):
    return next(model for model in daemon.status().models if model.name == name)


def orders_told(daemon):
    return [(entry.action, entry.model) for entry in daemon.ledger.read() if isinstance(entry, Order)]


def engine_pids(daemon):
    return {pid for name, pid in daemon.pids().items() if name in ENGINES and pid}


def test_an_unloaded_model_gives_its_memory_back_until_it_is_loaded(daemon):
    pids, generation, told = engine_pids(daemon), model(daemon).generation, orders_told(daemon)
    num_ready = sum(isinstance(entry, Ready) and entry.model == "tiny" for entry in daemon.ledger.read())
    stream = daemon.open_stream()
    wait_until(lambda: stream.num_events, what="a first token")
    assert order(daemon, "/v1/model/unload", model="tiny") == (200, {"model": "tiny", "state": "unloaded"})
    assert not any(is_alive(pid) for pid in pids)
    stream.wait()
    assert stream.error["code"] == "MODEL_UNLOADED"
    assert engine_pids(daemon) == set()
    assert order(daemon, "/v1/model/unload", model="tiny") == (200, {"model": "tiny", "state": "unloaded"})

    status, body = daemon.complete()
    assert (status, body["error"]["code"]) == (503, "MODEL_UNLOADED")
    assert daemon.complete(model="other")[0] == 200
    assert daemon.get("/readyz")[0] == 200
    status, body = daemon.get("/readyz?model=tiny")
    assert (status, body["models"]["tiny"]["state"]) == (503, "unloaded")
    assert daemon.get("/readyz?model=tiny", daemon.monitor_port)[1]["models"]["tiny"]["state"] == "unloaded"
    assert [known["id"] for known in daemon.get("/v1/models")[1]["data"]] == ["other"]
    assert (daemon.status().ready, model(daemon).state) == (True, "unloaded")
    assert sum(isinstance(e, Ready) and e.model == "tiny" for e in daemon.ledger.read()) == num_ready  # no standby took over

    assert order(daemon, "/v1/model/load?wait=60", model="tiny") == (200, {"model": "tiny", "state": "ready"})
    wait_until(lambda: daemon.complete()[0] == 200, what="an answer")
    assert model(daemon).generation == generation + 1
    assert order(daemon, "/v1/model/load", model="tiny")[0] == 200
    assert orders_told(daemon) == [*told, ("unload", "tiny"), ("load", "tiny")]


def test_what_runs_is_finished_before_a_model_is_unloaded(daemon):
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(daemon.complete, max_tokens=60, ignore_eos=True)
        wait_until(lambda: model(daemon).num_running == 1, what="the request in the engine")
        assert ctl(daemon, "unload", "tiny") == 0
        assert running.result(60)[0] == 200
    assert ctl(daemon, "load", "tiny", "--wait", "60") == 0
    assert daemon.complete()[0] == 200


def test_a_drained_model_finishes_what_runs_and_refuses_what_is_new(daemon, capsys):
    stream = daemon.open_stream(max_tokens=300)
    wait_until(lambda: stream.num_events, what="a first token")
    assert ctl(daemon, "drain", "tiny") == 0
    status, body = daemon.complete()
    assert (status, body["error"]["code"]) == (503, "MODEL_DRAINING")
    assert daemon.get("/readyz?model=tiny")[1]["models"]["tiny"]["state"] == "draining"
    assert (daemon.status().state, model(daemon).state, model(daemon).num_standby) == ("degraded", "draining", 1)
    assert daemon.complete(model="other")[0] == 200
    assert ctl(daemon, "drain", "tiny", "--wait", "30") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "tiny is drained: nothing runs in it"
    stream.wait()
    assert (stream.error, stream.is_done) == (None, True)

    active = next(p for p in daemon.status().processes if p.model == "tiny" and p.generation)
    os.kill(active.pid, signal.SIGKILL)  # the standby takes over, and is as drained
    wait_until(lambda: model(daemon).generation == active.generation + 1, what="the standby's promotion")
    assert daemon.complete()[0] == 503
    assert ctl(daemon, "undrain", "tiny") == 0
    assert daemon.complete()[0] == 200


def test_without_its_monitor_the_port_takes_no_orders_and_the_command_does(daemon):
    assert ctl(daemon, "stop", MONITOR_PROGRAM) == 0
    status, body = order(daemon, "/v1/model/unload", model="tiny")
    assert (status, body["error"]["code"]) == (503, "MONITOR_UNAVAILABLE")
    assert daemon.complete()[0] == 200
    assert ctl(daemon, "unload", "tiny") == 0
    assert model(daemon).state == "unloaded"
    assert ctl(daemon, "load", "tiny", "--wait", "60") == 0
    assert ctl(daemon, "start", MONITOR_PROGRAM) == 0


def test_what_was_ordered_outlives_the_daemon():
    with real_daemon("tiny", "other", "third") as daemon:
        assert ctl(daemon, "unload", "tiny") == 0
        assert ctl(daemon, "drain", "other") == 0
        assert daemon.terminate() == 0
        daemon.start_ready(60)
        assert "tiny is unloaded" in daemon.said()
        states = {known.name: known.state for known in daemon.status().models}
        assert states == {"tiny": "unloaded", "other": "draining", "third": "ready"}
        assert daemon.pids()[engine_program("tiny", 0)] == 0
        codes = [daemon.complete(model=name)[1].get("error", {}).get("code") for name in states]
        assert codes == ["MODEL_UNLOADED", "MODEL_DRAINING", None]
        assert ctl(daemon, "load", "tiny", "--wait", "60") == 0
        assert ctl(daemon, "undrain", "all") == 0
        assert daemon.status().ready
        assert daemon.terminate() == 0
        daemon.start_ready(60)
        assert daemon.status().ready
