"""The main job on real input: the demonstration model, served, chatted with, killed in mid-stream, and back."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    daemon = RealDaemon(embedded={MODEL: PATH})
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


def test_a_kill_under_32_streams_is_told_within_a_second_and_the_next_chat_works(daemon: RealDaemon) -> None:
    engine = daemon.engine(MODEL)
    prompts = [f"Story number {number}: once upon a time" for number in range(32)]
    streams: list[Stream] = [daemon.open_stream(prompt, model=MODEL) for prompt in prompts]
    wait_until(lambda: all(stream.num_tokens for stream in streams), 90, "a token on every stream")
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    killed_at_s = time.monotonic()
    for stream in streams:
        stream.wait()
        assert stream.error is not None
        assert stream.error["code"] == "ENGINE_DEAD"
        assert stream.is_done
        assert stream.ended_at_s is not None
        assert stream.ended_at_s - killed_at_s < 1.0
    status, text = post(daemon)  # waits for the next engine
    assert status == 200, text
    assert "Paris" in text
    assert daemon.new_engine(engine.pid, MODEL).generation == 2
