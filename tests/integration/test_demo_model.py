"""The main job on real input: the demonstration model, served, chatted with, killed in mid-stream, and back."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aphrodited.health.status import ProcessStatus
from aphrodited.page import read_page
from tests.support.daemons import wait_until
from tests.support.real_daemon import RealDaemon, Stream

PATH = Path(__file__).parents[2] / "var" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = "smollm2"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]

pytestmark = [
    pytest.mark.skipif(not PATH.exists(), reason="the demo model is not here; scripts/run fetches it"),
    pytest.mark.timeout(240),
]


@pytest.fixture(scope="module")
def daemon() -> Iterator[RealDaemon]:
    daemon = RealDaemon(embedded={MODEL: PATH}, on_death="resume")
    try:
        daemon.start()
        daemon.wait_serving(timeout_s=90)
        yield daemon
    finally:
        daemon.close()


def post(daemon: RealDaemon, **fields: Any) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=90)
    try:
        body = json.dumps({"model": MODEL, "messages": QUESTION, "temperature": 0, **fields})
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_it_knows_the_capital_of_france(daemon: RealDaemon) -> None:
    status, text = post(daemon)
    assert status == 200, text
    assert "Paris" in json.loads(text)["choices"][0]["message"]["content"]


def test_it_says_so_in_a_stream_too(daemon: RealDaemon) -> None:
    status, text = post(daemon, stream=True)
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert status == 200
    assert events[-1] == "[DONE]"
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "Paris" in "".join(delta.get("content") or "" for delta in deltas)


REQUESTS: list[dict[str, Any]] = [
    {"stream": True, "max_tokens": 60},
    {"stream": True, "max_tokens": 60, "n": 2, "temperature": 0.9, "seed": 7},
    {"stream": True, "max_tokens": 60, "n": 2, "temperature": 0.9, "seed": 8, "frequency_penalty": 1.0, "stop": ["the "]},
    {"max_tokens": 60, "logprobs": True, "top_logprobs": 2, "temperature": 0.9, "seed": 9},
    {"max_tokens": 60, "structured_outputs": {"regex": "([A-Z][a-z]+ ){12}"}, "temperature": 0.9, "seed": 10},
]


def essence(text: str) -> Any:
    """What must not differ between two answers to the same request."""
    if not text.startswith("data: "):
        answer = json.loads(text)
        return answer["choices"], answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]
    told: dict[int, tuple[str, Any]] = {}
    *events, done = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert done == "[DONE]"
    for choice in (choice for event in events for choice in json.loads(event)["choices"]):
        before, ending = told.get(choice["index"], ("", None))
        told[choice["index"]] = before + (choice["delta"].get("content") or ""), choice["finish_reason"] or ending
    return told


def test_a_kill_in_mid_answer_changes_no_byte(daemon: RealDaemon) -> None:
    questions = [[{"role": "user", "content": f"Tell me a long story about {what}."}] for what in ("a fox", "rain")]
    asked = [{**fields, "messages": messages} for fields in REQUESTS for messages in questions]
    undisturbed = [post(daemon, **fields) for fields in asked]
    before = daemon.engine(MODEL)
    page = daemon.paths.page(before.name)
    assert before.pid is not None
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [pool.submit(post, daemon, **fields) for fields in asked]
        wait_until(lambda: (read_page(page) or before).num_running == 14, 60, "every choice in the engine")
        os.kill(before.pid, signal.SIGKILL)
        for (status, text), answer in zip(undisturbed, answers, strict=True):
            assert status == 200, text
            assert answer.result(120)[0] == 200, answer.result()[1]
            assert essence(answer.result()[1]) == essence(text)
    assert daemon.engine(MODEL).generation == (before.generation or 0) + 1
    assert 'aphrodited_resumed_requests_total{model="smollm2"} 14.0' in metrics(daemon)


def metrics(daemon: RealDaemon) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_a_standby_goes_on_with_a_stream_of_the_engine_that_is_killed() -> None:
    daemon = RealDaemon(embedded={MODEL: PATH}, standby=1, on_death="resume")
    request = {"model": MODEL, "temperature": 0, "max_tokens": 60}

    def engines(state: str) -> list[ProcessStatus]:
        return [p for p in daemon.status().processes if p.model == MODEL and p.state == state]

    def text(stream: Stream) -> str:
        stream.wait(60)
        assert stream.error is None
        events = [json.loads(line.removeprefix("data: ")) for _, line in stream.lines if line.startswith("data: {")]
        return "".join(choice["text"] for event in events for choice in event["choices"])

    try:
        daemon.start()
        daemon.wait_serving(timeout_s=90)
        wait_until(lambda: engines("standby"), 120, "the standby")
        undisturbed = text(daemon.open_stream("Once upon a time", **request))
        for _ in range(2):
            wait_until(lambda: engines("standby"), 120, "the standby")
            (active,), (standby,) = engines("ready"), engines("standby")
            stream = daemon.open_stream("Once upon a time", **request)
            wait_until(lambda stream=stream: stream.num_events >= 5, 60, "tokens")
            assert active.pid is not None
            os.kill(active.pid, signal.SIGKILL)
            assert text(stream) == undisturbed
            (promoted,) = engines("ready")
            assert (promoted.pid, promoted.generation) == (standby.pid, (active.generation or 0) + 1)
    finally:
        daemon.close()
