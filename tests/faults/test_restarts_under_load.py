"""Real processes: engines and API workers are restarted while clients ask without a pause, and none of them notices."""

import json
import os
import signal

import pytest

from aphrodited.cli.aphroditectl import main as aphroditectl
from aphrodited.page import Phase, read_page
from tests.support.daemons import is_alive, wait_until
from tests.support.real_daemon import real_daemon
from tests.support.steady_load import steady_load

pytestmark = pytest.mark.timeout(180)

BODIES = [
    {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream, **more}
    for prompt, max_tokens, stream, more in (
        ("the quick brown fox", 20, True, {"temperature": 0}),
        ("jumps over", 8, False, {"temperature": 0}),
        ("the lazy dog", 60, True, {"seed": 7}),
        ("and again", 40, False, {"seed": 8}),
    )
]


@pytest.fixture(scope="module")
def shared():
    with real_daemon(standby=1, on_death="resume", drain_s=30) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared):
    wait_until(lambda: shared.status().models[0].num_standby == 1, 40, "a standby")
    shared.wait_serving()
    return shared


def test_engines_are_restarted_without_a_failed_request(daemon):
    before = {p.name: p.pid for p in daemon.status().processes if p.role == "engine"}
    generation = daemon.status().models[0].generation
    with steady_load(daemon.port, 6, BODIES) as load:
        load.wait_for(20)
        assert aphroditectl(["--config", str(daemon.config), "restart", "engine"]) == 0
        load.wait_for(20)
    assert load.failures == []
    after = {p.name: p.pid for p in daemon.status().processes if p.role == "engine"}
    assert set(before.values()).isdisjoint(after.values())
    assert daemon.status().models[0].generation == generation + 1


def test_api_workers_are_restarted_one_after_the_other_without_a_failed_request(daemon):
    before = {name: pid for name, pid in daemon.pids().items() if name.startswith("api")}
    with steady_load(daemon.port, 6, BODIES) as load:
        load.wait_for(20)
        assert aphroditectl(["--config", str(daemon.config), "restart", "api"]) == 0
        load.wait_for(20)
    assert load.failures == []
    after = {name: pid for name, pid in daemon.pids().items() if name.startswith("api")}
    assert len(after) == len(before) == 2
    assert set(before.values()).isdisjoint(after.values())


def events_of(daemon, request_id):
    """In the API workers' logs, as far as their lines are complete."""
    texts = [path.read_text() for path in daemon.paths.log_dir.glob("api-*.log")]
    lines = [line for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]
    return [entry["event"] for entry in map(json.loads, lines) if entry.get("request_id") == request_id]


def test_a_stopping_engine_finishes_its_answers_while_the_standby_serves_new_ones(daemon):
    active = next(p for p in daemon.status().processes if p.role == "engine" and p.generation)
    stream = daemon.open_stream(max_tokens=120, stream_options={"include_usage": True})
    wait_until(lambda: stream.num_events, what="a first token")
    os.kill(active.pid, signal.SIGTERM)
    wait_until(lambda: daemon.status().models[0].generation == active.generation + 1, what="the standby's promotion")
    assert daemon.complete()[0] == 200
    page = read_page(daemon.paths.page(active.name))
    assert is_alive(active.pid)
    assert (page.pid, page.phase, page.num_running) == (active.pid, Phase.DRAINING, 1)
    stream.wait()
    assert stream.error is None
    assert stream.num_tokens == 120
    # A client may have its last event before the worker's line is written, or half of it.
    wait_until(lambda: "request_finished" in events_of(daemon, stream.request_id), what="the worker's line")
    assert "request_resumed" not in events_of(daemon, stream.request_id)


def test_an_engine_without_a_standby_is_restarted_without_a_failed_request():
    with real_daemon(on_death="resume") as daemon, steady_load(daemon.port, 4, BODIES) as load:
        load.wait_for(10)
        assert aphroditectl(["--config", str(daemon.config), "restart", "engine"]) == 0
        load.wait_for(10)
        assert load.failures == []
