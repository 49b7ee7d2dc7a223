"""Lines of the log: complete, short enough, never lost in silence, never in the way."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from aphrodited import log

MONOTONIC_SLACK_S = 5.0


class Pipe:
    """A pipe that stands for the supervisor's end of a process's stderr."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def lines(self) -> list[dict[str, Any]]:
        """What was logged so far."""
        assert log.flush(10)
        os.set_blocking(self.reader, False)
        data = b""
        try:
            while chunk := os.read(self.reader, 1 << 20):
                data += chunk
        except BlockingIOError:
            pass
        assert all(len(line) < log.MAX_LINE for line in data.split(b"\n"))
        return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe that logs go to; the process's own logging is put back afterwards."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level, sys.excepthook, threading.excepthook, log._output)
    log._output = log._Output()
    made = Pipe()
    yield made
    os.set_blocking(made.reader, False)
    log._output.stop()
    root.handlers[:], level, sys.excepthook, threading.excepthook, log._output = before
    root.setLevel(level)
    logging.captureWarnings(False)
    for fd in (made.reader, made.writer):
        os.close(fd)


def configure(pipe: Pipe, **changes: Any) -> None:
    log.configure_logging(**{"role": "engine", "program": "engine-1", "model": "m", "fd": pipe.writer, **changes})


def test_a_line_says_who_when_and_what(pipe: Pipe) -> None:
    configure(pipe)
    log.set_generation(3)
    log.get_logger().bind(request_id="r-1").info("request_finished", num_tokens=7)
    (line,) = pipe.lines()
    assert line.pop("monotonic_s") == pytest.approx(time.monotonic(), abs=MONOTONIC_SLACK_S)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "event": "request_finished",
        "role": "engine",
        "program": "engine-1",
        "model": "m",
        "generation": 3,
        "pid": os.getpid(),
        "request_id": "r-1",
        "num_tokens": 7,
    }


def test_less_severe_levels_are_left_out(pipe: Pipe) -> None:
    configure(pipe, level="warning")
    logger = log.get_logger()
    for method in ("debug", "info", "warning", "error", "critical"):
        getattr(logger, method)("thing_happened")
    assert [line["level"] for line in pipe.lines()] == ["warning", "error", "critical"]


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "x" * 100_000},
        {"text": "\n" * 5000},
        {"text": "\N{GRINNING FACE}" * 3000},
        {f"field_{n}": "y" * 50 for n in range(500)},
        {f"field_{n}": n for n in range(500)},
        {"nested": [["z" * 3000] * 3]},
    ],
)
def test_a_long_event_is_cut_visibly_and_stays_json(pipe: Pipe, fields: dict[str, Any]) -> None:
    configure(pipe)
    log.get_logger().info("thing_happened", **fields)
    (line,) = pipe.lines()
    assert line["event"] == "thing_happened"
    assert "cut" in json.dumps(line)


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, {(1, 2): 3}, "\udc80", float("nan"), b"bytes", {1, 2}, ValueError("x"), Ellipsis, 2**100],
)
def test_any_value_can_be_logged(pipe: Pipe, value: object) -> None:
    configure(pipe)
    log.get_logger().info("thing_happened", value=value)
    assert pipe.lines()[0]["event"] == "thing_happened"


def test_a_value_that_holds_itself_can_be_logged(pipe: Pipe) -> None:
    configure(pipe)
    value: list[Any] = []
    value.append(value)
    log.get_logger().info("thing_happened", value=value)
    assert pipe.lines()[0]["event"] == "thing_happened"


def test_an_exception_comes_with_its_traceback_of_which_the_end_is_kept(pipe: Pipe) -> None:
    configure(pipe)
    try:
        raise ValueError("x" * 3000 + "the end")
    except ValueError:
        log.get_logger().exception("step_failed")
    (line,) = pipe.lines()
    assert line["level"] == "error"
    assert line["exception"].endswith("the end")


def test_the_standard_library_and_warnings_join_in(pipe: Pipe) -> None:
    configure(pipe)
    logging.getLogger("aiohttp.server").error("bad %s", "request")
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("x").error("no %d number", "a")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)
    lines = pipe.lines()
    assert [line["event"] for line in lines] == ["library_reported"] * 3
    assert [line["logger"] for line in lines] == ["aiohttp.server", "x", "py.warnings"]
    assert lines[0]["message"] == "bad request"


def test_uncaught_exceptions_of_threads_are_logged(pipe: Pipe) -> None:
    configure(pipe)

    def fail() -> None:
        raise ValueError("in a thread")

    thread = threading.Thread(target=fail, name="loader")
    thread.start()
    thread.join()
    (line,) = pipe.lines()
    assert (line["event"], line["thread"], line["level"]) == ("exception_uncaught", "loader", "critical")


def test_a_stalled_reader_costs_events_not_time(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_QUEUED", 20)
    configure(pipe)
    logger = log.get_logger()
    give_up_at_s = time.monotonic() + 30
    while log.flush(0.01) and time.monotonic() < give_up_at_s:  # the pipe takes 64 KiB, the queue 20 lines
        for number in range(40):
            logger.info("thing_happened", number=number, text="x" * 1000)
    dropped_before = log.num_dropped()
    for _ in range(50):
        logger.info("thing_happened", number=0)
    assert log.num_dropped() >= dropped_before + 30
    assert not log.flush(0.01)
    received = b""
    told = 0
    while told < log.num_dropped():
        received += os.read(pipe.reader, 1 << 16)
        lines = [json.loads(line) for line in received.splitlines() if line.endswith(b"}")]
        told = sum(line["num_dropped"] for line in lines if line["event"] == "log_events_dropped")
    assert told == log.num_dropped()


def test_a_reader_that_left_is_survived_and_counted(pipe: Pipe) -> None:
    reader, writer = os.pipe()
    configure(pipe, fd=writer, threaded=False)
    os.close(reader)
    log.get_logger().info("thing_happened")
    os.close(writer)
    log.get_logger().info("thing_happened")
    assert log.num_dropped() == 2


def test_without_a_thread_the_caller_writes(pipe: Pipe) -> None:
    before = threading.active_count()
    configure(pipe, threaded=False)
    log.get_logger().info("thing_happened")
    assert threading.active_count() == before
    assert pipe.lines()[0]["event"] == "thing_happened"


def test_lines_of_threads_never_interleave(pipe: Pipe) -> None:
    configure(pipe)

    def talk(name: str) -> None:
        for _ in range(20):
            log.get_logger().info("thing_happened", name=name, text=name * 100)

    threads = [threading.Thread(target=talk, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = pipe.lines()
    assert len(lines) == 80
    assert all(line["text"] == line["name"] * 100 for line in lines)


def test_context_variables_are_part_of_the_line(pipe: Pipe) -> None:
    configure(pipe)
    with structlog.contextvars.bound_contextvars(request_id="r-9"):
        log.get_logger().info("thing_happened")
    assert pipe.lines()[0]["request_id"] == "r-9"


def test_what_was_logged_last_is_written_before_the_process_ends() -> None:
    code = (
        "from aphrodited.log import *\n"
        "configure_logging(role='engine', program='e')\n"
        "for n in range(100): get_logger().info('thing_happened', n=n)\n"
        "raise RuntimeError('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=50)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert [line.get("n") for line in lines[:100]] == list(range(100))
    assert lines[100]["event"] == "exception_uncaught"


def test_a_library_user_sees_warnings_and_no_more() -> None:
    code = (
        "from aphrodited.log import get_logger\n"
        "get_logger().info('thing_happened'); get_logger().warning('thing_failed')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["thing_failed"]
    assert done.stdout == ""
