"""Shows log lines: merged, filtered, for people or as JSON, and goes on with -f."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aphrodited.cli.log_files import LogFilter, LogFolder, LogLine
from aphrodited.cli.target import UsageError
from aphrodited.cli.terminal import complain, local_time, painted, parse_time, printable, wants_colour

POLL_INTERVAL_S = 0.2
FOLLOW_TAIL = 20  # lines shown before following, unless asked otherwise

_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_COLOURS = {"debug": "dim", "warning": "yellow", "error": "red", "critical": "red"}
_NOT_REPEATED = {"time", "level", "event", "role", "program", "pid", "monotonic_s", "model", "generation", "exception"}


def parse_since(text: str, now: datetime | None = None) -> datetime:
    """An age such as 90s, 10m, 2h, 1d, or a time such as 2026-01-31T12:00. Raises UsageError."""
    if match := _AGE.fullmatch(text):
        return (now or datetime.now(UTC)) - timedelta(**{_UNITS[match[2]]: int(match[1])})
    instant = parse_time(text)
    if instant is None:
        raise UsageError(f"--since {text}: expected an age such as 10m or 2h, or a time such as 2026-01-31T12:00Z")
    return instant


def show_logs(
    folder: Path, programs: set[str] | None, wanted: LogFilter, *, as_json: bool, follow: bool, num_lines: int | None
) -> int:
    use_colour = wants_colour(sys.stdout)
    with LogFolder(folder, programs) as logs:
        lines: Iterable[LogLine] = filter(wanted.passes, logs.history())
        if logs.is_empty and not follow:
            complain(f"there are no log files in {folder}" + (" of these processes" if programs else ""))
            return 1
        if follow and num_lines is None and wanted.since is None:
            num_lines = FOLLOW_TAIL
        for line in lines if num_lines is None else deque(lines, maxlen=num_lines):
            _show(line, as_json=as_json, use_colour=use_colour)
        while follow:
            sys.stdout.flush()
            time.sleep(POLL_INTERVAL_S)
            for line in filter(wanted.passes, logs.appended()):
                _show(line, as_json=as_json, use_colour=use_colour)
    return 0


def _show(line: LogLine, *, as_json: bool, use_colour: bool) -> None:
    print(as_json_line(line) if as_json else render_line(line, use_colour=use_colour))


def as_json_line(line: LogLine) -> str:
    """Our events as they are; any other line wrapped, so that each line of the output is JSON."""
    if line.fields is not None:
        return line.text
    return json.dumps({"time": line.time.isoformat(), "event": "line_printed", "program": line.program, "message": line.text})


def render_line(line: LogLine, *, use_colour: bool) -> str:
    """TIME PROGRAM LEVEL event key=value ..., and a traceback in lines of its own below."""
    if line.fields is None:
        return f"{painted(line.program, 'dim', use_colour=use_colour)} | {printable(line.text)}"
    fields = line.fields
    level = str(fields.get("level", ""))
    details = " ".join(f"{printable(key)}={_value(value)}" for key, value in _details(fields).items())
    head = (
        f"{painted(local_time(line.time), 'dim', use_colour=use_colour)} {line.program:<18} "
        f"{painted(f'{level:<8}', _COLOURS.get(level), use_colour=use_colour)} "
        f"{painted(printable(str(fields['event'])), 'bold', use_colour=use_colour)}"
    )
    text = f"{head} {details}" if details else head
    for extra in str(fields.get("exception", "")).splitlines():
        text += f"\n    {printable(extra)}"
    return text


def _details(fields: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if key not in _NOT_REPEATED and value is not None}


def _value(value: object) -> str:
    if isinstance(value, str):
        return printable(value) if value and not re.search(r"[\s=\"]", value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False)
