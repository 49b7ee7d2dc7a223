"""Engines that die under requests which go on in the next one: their clients get what an undisturbed engine gives."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aphrodited.page import Phase, read_page
from aphrodited.paths import engine_program
from tests.support.daemons import wait_until
from tests.support.real_daemon import MARKER, RealDaemon, real_daemon

ENGINE = engine_program("tiny", 0)
SLOW = 3

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def shared() -> Iterator[RealDaemon]:
    with real_daemon(on_death="resume") as daemon:
        yield daemon


@pytest.fixture
def daemon(shared: RealDaemon) -> Iterator[RealDaemon]:
    shared.wait_serving()
    yield shared
    shared.wait_serving()


def post(daemon: RealDaemon, path: str, body: dict[str, Any]) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    try:
        connection.request("POST", path, json.dumps({"model": "tiny", **body}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def essence(path: str, text: str) -> list[Any]:
    """What must not differ between two answers to the same request: all but ids, instants and the cut into events."""
    if "data: " not in text:
        answer = json.loads(text)
        usage = {name: value for name, value in answer["usage"].items() if name != "prompt_tokens_details"}
        return [answer.get("choices") or answer["data"], usage]
    told: dict[int, list[Any]] = {}
    *events, done = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    assert not any("error" in json.loads(event) for event in events), events[-1]
    for choice in (choice for event in events for choice in json.loads(event)["choices"]):
        parts = told.setdefault(choice["index"], ["", [], None])
        parts[0] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        parts[1] += list((choice.get("logprobs") or {}).get("content") or [])
        parts[2] = choice["finish_reason"] or parts[2]
    return [told]


COMPLETION = {"prompt": "the quick brown fox jumps over the lazy dog", "max_tokens": 250, "ignore_eos": True}
CHAT = {
    "messages": [{"role": "user", "content": "the quick brown fox"}],
    "max_tokens": 250,
    "ignore_eos": True,
    "logprobs": True,
    "top_logprobs": 1,
}
LONG_STOP = "fox jumps over the lazy dogma"  # nearly all of it is held back again and again
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {**COMPLETION, "stream": True}),
    ("/v1/completions", {**COMPLETION, "stream": True, "n": 2, "stop": [LONG_STOP]}),
    ("/v1/completions", {**COMPLETION, "logprobs": 1, "n": 2, "min_tokens": 200}),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/chat/completions", {**CHAT, "n": 2}),
]


@pytest.mark.parametrize("num_deaths", [1, 3])
def test_streams_and_whole_answers_go_on_in_the_next_engine(daemon: RealDaemon, num_deaths: int) -> None:
    undisturbed = [post(daemon, path, body) for path, body in REQUESTS]
    assert [status for status, _ in undisturbed] == [200] * len(REQUESTS)
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        asked = [pool.submit(post, daemon, path, body) for path, body in REQUESTS]
        for _ in range(num_deaths):
            pid = daemon.engine().pid
            assert pid is not None
            wait_until(lambda: _num_running(daemon) == 8, what="every choice in the engine")
            os.kill(pid, signal.SIGKILL)
            daemon.new_engine(pid)
        answers = [future.result(90) for future in asked]
    for (path, _), (status, text), (_, expected) in zip(REQUESTS, answers, undisturbed, strict=True):
        assert status == 200, text
        assert essence(path, text) == essence(path, expected)


def _num_running(daemon: RealDaemon) -> int:
    page = read_page(daemon.paths.page(ENGINE))
    return page.num_running if page is not None else 0


def _phase(daemon: RealDaemon) -> Phase | None:
    page = read_page(daemon.paths.page(ENGINE))
    return page.phase if page is not None else None


def test_an_engine_that_is_restarted_hands_over_what_it_could_not_finish(daemon: RealDaemon) -> None:
    """SIGTERM: it refuses what is new and lets the rest run for a while, then ends it."""
    body = {**COMPLETION, "max_tokens": 900, "stream": True}
    expected = post(daemon, "/v1/completions", body)
    engine = daemon.engine()
    assert engine.pid is not None
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(post, daemon, "/v1/completions", body)
        wait_until(lambda: _num_running(daemon) == 1, what="the long answer in the engine")
        os.kill(engine.pid, signal.SIGTERM)
        wait_until(lambda: _phase(daemon) is Phase.DRAINING, what="the drain")
        new = pool.submit(post, daemon, "/v1/completions", COMPLETION)
        assert new.result(60)[0] == 200
        assert essence("", long.result(60)[1]) == essence("", expected[1])
    assert daemon.engine().generation == (engine.generation or 0) + 1


def test_an_embedding_is_made_by_the_next_engine(daemon: RealDaemon) -> None:
    """Two prompts, one of which takes its time."""
    body = {"input": [[MARKER, MARKER, SLOW, 5, 6, 7], [5, 6, 7]]}
    (status, expected), pid = post(daemon, "/v1/embeddings", body), daemon.engine().pid
    assert status == 200, expected
    assert pid is not None
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(post, daemon, "/v1/embeddings", body)
        wait_until(lambda: _phase(daemon) is Phase.STEPPING, what="the embedding in the engine")
        os.kill(pid, signal.SIGKILL)
        status, text = asked.result(60)
    assert status == 200, text
    assert json.loads(text)["data"] == json.loads(expected)["data"]
