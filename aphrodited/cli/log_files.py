"""Reads the log files of a daemon: the rotated ones, the current ones, and what is appended while one looks.

Merges the files by the time in their lines; a line without a time (a C library's, a traceback's) stays behind the
line before it. Needs no running daemon and no lock; rotation by renaming is followed by inode.
"""

from __future__ import annotations

import heapq
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from aphrodited.cli.terminal import parse_time

MAX_LINE = 64 * 1024  # bytes of one line kept; ours are far shorter
_PLAIN_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")  # as the supervisor's own log has it
LEVELS = ("debug", "info", "warning", "error", "critical")


@dataclass(frozen=True, slots=True, order=True)
class LogLine:
    """One line. time: its own, or that of the line before.  fields: None if the line is not one of our events."""

    time: datetime
    program: str = field(compare=False)
    text: str = field(compare=False)
    fields: dict[str, Any] | None = field(compare=False)


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Which lines to show. Lines that are no events have no level; they pass unless one request is asked for."""

    since: datetime | None = None
    level: str = "debug"
    request_id: str | None = None

    def passes(self, line: LogLine) -> bool:
        if self.since is not None and line.time < self.since:
            return False
        if line.fields is None:
            return self.request_id is None
        if self.request_id is not None and line.fields.get("request_id") != self.request_id:
            return False
        level = line.fields.get("level")
        return level not in LEVELS or LEVELS.index(level) >= LEVELS.index(self.level)


class LogFile:
    """One program's log: PROGRAM.log and the rotated PROGRAM.log.1, .2, ... beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.program = path.name.removesuffix(".log")
        self._file: BinaryIO | None = None
        self._rest = b""  # of a line whose end is not written yet
        self._time = datetime.fromtimestamp(0, UTC)

    def history(self) -> Iterator[LogLine]:
        """Every complete line so far, oldest first; `appended` goes on where this ends."""
        for path in [*self._rotated(), self.path]:
            if not self._open(path):
                continue
            yield from self._read()
            if path != self.path and self._rest:
                yield from self._lines(b"\n")

    def appended(self) -> list[LogLine]:
        """Lines since the last call. Empty if there are none, or no file yet."""
        lines = list(self._read())
        if self._was_replaced():
            lines += self._read()  # what was written between reading and renaming
            if self._open(self.path):
                lines += self._read()
        return lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _rotated(self) -> list[Path]:
        prefix = f"{self.path.name}."
        numbers = [p.name.removeprefix(prefix) for p in self.path.parent.glob(f"{prefix}*")]
        return [self.path.with_name(prefix + n) for n in sorted(filter(str.isdigit, numbers), key=int, reverse=True)]

    def _open(self, path: Path) -> bool:
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
        self.close()
        self._file, self._rest = file, b""
        return True

    def _was_replaced(self) -> bool:
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return False
        if self._file is None:
            return True
        mine = os.fstat(self._file.fileno())
        return (now.st_dev, now.st_ino) != (mine.st_dev, mine.st_ino) or now.st_size < self._file.tell()

    def _read(self) -> Iterator[LogLine]:
        while self._file is not None and (chunk := self._file.read(MAX_LINE)):
            yield from self._lines(chunk)

    def _lines(self, chunk: bytes) -> Iterator[LogLine]:
        *complete, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE:
            complete, self._rest = [*complete, self._rest], b""
        for raw in complete:
            yield self._line(raw.decode("utf-8", "replace").rstrip("\r"))

    def _line(self, text: str) -> LogLine:
        fields = _event_fields(text)
        stamp = str(fields["time"]) if fields is not None else text[:23] if _PLAIN_TIME.match(text) else ""
        self._time = (parse_time(stamp, local=fields is None) if stamp else None) or self._time
        return LogLine(self._time, self.program, text, fields)


def _event_fields(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and "event" in fields and "time" in fields else None


class LogFolder:
    """All logs in a folder, or those of some programs; closes them when left. A folder may also be missing."""

    def __init__(self, folder: Path, programs: set[str] | None = None) -> None:
        self._folder = folder
        self._programs = programs
        self._files: dict[Path, LogFile] = {}

    def __enter__(self) -> LogFolder:
        return self

    def __exit__(self, *_exc: object) -> None:
        for file in self._files.values():
            file.close()

    @property
    def is_empty(self) -> bool:
        return not self._files

    def history(self) -> Iterator[LogLine]:
        """Everything so far in the order of time."""
        self._find_files()
        return heapq.merge(*(file.history() for file in self._files.values()))

    def appended(self) -> list[LogLine]:
        """What came since the last call, in the order of time, also in files that are new."""
        self._find_files()
        return sorted(line for file in self._files.values() for line in file.appended())

    def _find_files(self) -> None:
        for path in sorted(self._folder.glob("*.log")):
            if self._programs is None or path.name.removesuffix(".log") in self._programs:
                self._files.setdefault(path, LogFile(path))
