"""Structured logs: one event is one JSON line of at most 4096 bytes, written to stderr with one write().

Lines of that size are never torn apart on a pipe (pipe(7)), so processes may share one. A thread does the
writing, from a bounded queue: a reader that stalls costs events, which are counted and told, never the caller's
time. Knows no files and no rotation: whoever started the process owns its stderr.

    log = get_logger()
    log.info("engine_died", process_pid=4711, signal="SIGKILL")    noun_verb in the past, details as fields

A field that every line has (pid, model, generation) speaks of the writer unless an event gives its own. Before `configure_logging`, warnings and worse are written at once, as a library should.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import MutableMapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import msgspec
import structlog

MAX_LINE = 4096  # PIPE_BUF of Linux
MAX_QUEUED = 4096  # lines
FLUSH_TIMEOUT_S = 2.0
STDERR = 2

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

Event = MutableMapping[str, Any]


def get_logger() -> Any:
    """A structlog logger. Events are `noun_verb` in the past, with fields: log.info("model_loaded", path=path)."""
    return structlog.get_logger()


def configure_logging(
    *, role: str, program: str, level: str = "info", model: str | None = None, threaded: bool = True, fd: int = STDERR
) -> None:
    """Call once, early in a process. Every line then says who wrote it; the standard library's logging joins in.

    threaded: False writes in the caller, for a process that must have one thread.  fd: where lines go.
    """
    fields: dict[str, Any] = {"role": role, "program": program, "generation": 0}
    if model is not None:
        fields["model"] = model
    _output.stop()
    _output.configure(fields, LEVELS[level], fd, threaded=threaded)
    logging.getLogger().handlers[:] = [_StandardHandler()]
    set_level(level)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def set_level(level: str) -> None:
    """From now on less severe events are dropped. Any thread."""
    _output.level = LEVELS[level]
    # Libraries talk a lot below warning; that is for debugging.
    logging.getLogger().setLevel(logging.DEBUG if level == "debug" else logging.WARNING)


def set_generation(generation: int) -> None:
    """From now on every line carries this generation."""
    _output.fields["generation"] = generation


def flush(timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
    """Wait until what was logged is written; False if the reader did not take it in time. For os._exit and exec."""
    return _output.flush(timeout_s)


def num_dropped() -> int:
    """Events lost because the reader of the log stalled or left."""
    return _output.num_dropped


class _Output:
    """Where lines go: a queue and the thread that empties it, or the caller's own write."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.level = LEVELS["warning"]
        self.num_dropped = 0
        self._num_told = 0
        self._fd = STDERR
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._writing = False
        self._thread: threading.Thread | None = None

    def configure(self, fields: dict[str, Any], level: int, fd: int, *, threaded: bool) -> None:
        self.fields, self.level, self._fd = fields, level, fd
        if threaded:
            self._thread = threading.Thread(target=self._run, args=(fd,), name="log", daemon=True)
            self._thread.start()

    def put(self, line: bytes) -> None:
        if self._thread is None:
            self._write(self._fd, line, wait_s=1.0)
            return
        with self._changed:
            if len(self._lines) >= MAX_QUEUED:
                self.num_dropped += 1
                return
            self._lines.append(line)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        if self._thread is None:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._writing, timeout_s)

    def stop(self) -> None:
        """Flush, end the thread; later lines are written in the caller."""
        if self._thread is None:
            return
        self.flush(FLUSH_TIMEOUT_S)
        thread, self._thread = self._thread, None
        with self._changed:
            self._changed.notify_all()
        thread.join(FLUSH_TIMEOUT_S)

    def _run(self, fd: int) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._thread is not me)
                if not self._lines:
                    return
                line = self._lines.popleft()
                self._writing = True
            self._write(fd, line, wait_s=None)
            if self.num_dropped > self._num_told:
                told, self._num_told = self._num_told, self.num_dropped
                notice = _rendered({"event": "log_events_dropped", "num_dropped": self._num_told - told}, "warning")
                self._write(fd, notice, wait_s=None)

    def _write(self, fd: int, line: bytes, *, wait_s: float | None) -> None:
        """One write(); more only if the kernel took a part, which it does not on a pipe or for a file."""
        try:
            while line:
                try:
                    line = line[os.write(fd, line) :]
                except BlockingIOError:
                    if not select.select([], [fd], [], wait_s)[1]:
                        self.num_dropped += 1
                        return
        except (OSError, ValueError):  # the reader left or the descriptor is closed: nobody is there to tell
            self.num_dropped += 1


def _rendered(event: Event, level: str) -> bytes:
    """The line of an event: who, when and what, cut to MAX_LINE bytes."""
    line: dict[str, Any] = {
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "level": level,
        "event": event.pop("event", ""),
        **_output.fields,
        "pid": os.getpid(),
        "monotonic_s": round(time.monotonic(), 6),
        **event,
    }
    encoded = _encoded(line)
    if len(encoded) > MAX_LINE:
        encoded = _shortened(line)
    return encoded


def _encoded(line: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(line, enc_hook=repr) + b"\n"
    except (TypeError, ValueError, RecursionError):  # a key that is no text, a lone surrogate, a cycle
        plain = {_text(key): value if isinstance(value, int | float) else _text(value) for key, value in line.items()}
        return msgspec.json.encode(plain) + b"\n"


def _text(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def _shortened(line: dict[str, Any]) -> bytes:
    """The line with its longest fields cut, visibly, until it fits."""
    texts = {key: value if isinstance(value, str | int | float | None) else _text(value) for key, value in line.items()}
    for limit in (2000, 1000, 400, 100, 24):
        for key, value in texts.items():
            if isinstance(value, str) and len(value) > limit:
                lost = len(value) - limit
                # Of a traceback the end matters, of everything else the beginning.
                cut = f"...[{lost} characters cut]"
                texts[key] = f"{cut}{value[-limit:]}" if key == "exception" else f"{value[:limit]}{cut}"
        encoded = _encoded(texts)
        if len(encoded) <= MAX_LINE:
            return encoded
    kept = {key: texts.get(key) for key in ("time", "level", "event", "role", "program", "pid", "monotonic_s")}
    return _encoded({**kept, "cut": f"{len(texts)} fields"})


def _filter_level(_logger: Any, method: str, event: Event) -> Event:
    if LEVELS.get(method, LEVELS["error"]) < _output.level:
        raise structlog.DropEvent
    return event


def _add_exception(_logger: Any, _method: str, event: Event) -> Event:
    exc_info = event.pop("exc_info", None)
    if exc_info is True:
        exc_info = sys.exc_info()
    elif isinstance(exc_info, BaseException):
        exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
    if exc_info and exc_info[0] is not None:
        event["exception"] = "".join(traceback.format_exception(*exc_info)).rstrip()
    return event


def _render(_logger: Any, method: str, event: Event) -> tuple[tuple[bytes], dict[str, Any]]:
    return (_rendered(event, "error" if method == "exception" else method),), {}


class _Sink:
    """structlog's idea of a logger: one method per level, each given the finished line."""

    def msg(self, line: bytes) -> None:
        _output.put(line)

    debug = info = warning = error = critical = exception = fatal = log = msg


class _StandardHandler(logging.Handler):
    """Lines of the standard library's logging (aiohttp, asyncio, warnings) as events."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit the format
            message = str(record.msg)
        event: Event = {"event": "library_reported", "logger": record.name, "message": message}
        level = record.levelname.lower() if record.levelname.lower() in LEVELS else "info"
        if LEVELS[level] >= _output.level:
            event["exc_info"] = record.exc_info
            _output.put(_rendered(_add_exception(None, level, event), level))


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        get_logger().critical("exception_uncaught", error=repr(error), exc_info=(kind, error, trace))
    flush()


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        thread = args.thread.name if args.thread else ""
        get_logger().critical("exception_uncaught", error=repr(args.exc_value), thread=thread, exc_info=args.exc_value)


_output = _Output()
atexit.register(flush)
if not structlog.is_configured():
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, _filter_level, _add_exception, _render],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        logger_factory=lambda *_args: _Sink(),
        cache_logger_on_first_use=False,
    )
