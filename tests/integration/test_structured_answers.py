"""Grammars through a whole daemon: HTTP, ZeroMQ, the real engine over a tiny random model, and the examiner's process."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import is_alive, wait_until
from tests.support.real_daemon import RealDaemon, Stream, real_daemon
from tests.support.tiny_models import write_tiny_llama_dir

MODEL = "random"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "sizes": {"enum": [[1, 2], None]}},
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
NEVER_COMPILES = "start: A\nA: ~/(.*a.{14}b.*)/ & /[ab]{2000,}/\n"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    path: Path = write_tiny_llama_dir(tmp_path_factory.mktemp("model"), max_position_embeddings=1024)
    with real_daemon(embedded={MODEL: path}) as daemon:
        yield daemon


def complete(daemon: RealDaemon, **fields: Any) -> tuple[int, Any]:
    return daemon.complete(**{"model": MODEL, "max_tokens": 400, "temperature": 1.5, "seed": 3, **fields})


def by_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": schema}}


def test_every_choice_keeps_to_the_schema(daemon: RealDaemon) -> None:
    status, body = complete(daemon, response_format=by_schema(SCHEMA), n=4)
    assert status == 200, body
    answers = [json.loads(choice["text"]) for choice in body["choices"]]
    assert all(set(answer) == {"name", "sizes"} and answer["sizes"] in ([1, 2], None) for answer in answers)
    assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
    assert len({choice["text"] for choice in body["choices"]}) > 1


def test_a_streamed_answer_keeps_to_its_regex(daemon: RealDaemon) -> None:
    stream = daemon.open_stream(
        model=MODEL, max_tokens=400, structured_outputs={"regex": "[a-f]{4}(-[0-9]{2}){3}"}, logprobs=1
    )
    stream.wait()
    assert re.fullmatch("[a-f]{4}(-[0-9]{2}){3}", text_of(stream))
    assert stream.is_done


def test_a_bad_schema_is_a_400_of_its_field(daemon: RealDaemon) -> None:
    status, body = complete(daemon, response_format=by_schema({"type": "thing"}))
    assert (status, body["error"]["param"], body["error"]["code"]) == (400, "response_format", "invalid_request_error")
    stream = daemon.open_stream(model=MODEL, max_tokens=50, structured_outputs={"regex": "("})
    stream.wait()
    assert stream.error is not None
    assert (stream.status, stream.error["param"]) == (400, "structured_outputs")


def test_a_grammar_that_never_compiles_is_a_400_and_others_are_answered_meanwhile(daemon: RealDaemon) -> None:
    endless = daemon.open_stream(model=MODEL, max_tokens=50, structured_outputs={"grammar": NEVER_COMPILES})
    assert complete(daemon, max_tokens=5)[0] == 200
    assert endless.ended_at_s is None
    endless.wait(60)
    assert endless.status == 400
    assert endless.error is not None
    assert endless.error["param"] == "structured_outputs"
    assert complete(daemon, structured_outputs={"choice": ["yes", "no"]})[1]["choices"][0]["text"] in ("yes", "no")


def test_the_examiner_ends_with_its_engine_however_that_ends(daemon: RealDaemon) -> None:
    complete(daemon, structured_outputs={"regex": "a"})
    engine = daemon.engine(MODEL)
    assert engine.pid is not None
    examiners = examiners_of(engine.pid)
    assert len(examiners) == 1
    os.kill(engine.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, examiners)), 10, "the examiner's end")
    daemon.new_engine(engine.pid, MODEL)
    assert complete(daemon, structured_outputs={"regex": "a"})[1]["choices"][0]["text"] == "a"


def text_of(stream: Stream) -> str:
    chunks = [json.loads(line.removeprefix("data: ")) for _, line in stream.lines if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


def examiners_of(pid: int) -> list[int]:
    children = [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
    return [child for child in children if b"grammar.examiner" in Path(f"/proc/{child}/cmdline").read_bytes()]
