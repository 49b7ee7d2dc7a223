"""Text for a terminal: colours, tables, times and durations. Knows nothing of what it shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO

COLOURS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "dim": "2", "bold": "1"}


def wants_colour(stream: TextIO) -> bool:
    """A terminal, and nobody asked for plain text (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: str | None, *, use_colour: bool) -> str:
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if use_colour and colour else text


def printable(text: str) -> str:
    """Without what could steer the terminal: control characters, escape sequences, lone surrogates."""
    return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, colours: Sequence[Sequence[str | None]] = ()) -> str:
    """Left-aligned columns, two spaces apart. colours: of each cell of each row, if any."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    shown = []
    for number, line in enumerate(lines):
        cells = []
        for column, (cell, width) in enumerate(zip(line, widths, strict=True)):
            colour = colours[number - 1][column] if number and colours else None
            padding = " " * (width - len(cell)) if column + 1 < len(header) else ""
            cells.append(painted(cell, colour, use_colour=colour is not None) + padding)
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)


def duration(seconds: float | None) -> str:
    """The two largest units: 3d4h, 2h10m, 5m3s, 12s, 0.4s."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for size, unit, smaller, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller}{small_unit}"
    return f"{whole}s"


def megabytes(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / 1024**2:.0f}M"


def local_time(instant: datetime) -> str:
    """To the millisecond, in this host's time zone."""
    return instant.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def parse_time(text: str, *, local: bool = False) -> datetime | None:
    """An RFC 3339 time; None if it is not one. Without an offset it counts as UTC, or as this host's time."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    return instant if instant.tzinfo else instant.astimezone() if local else instant.replace(tzinfo=UTC)


def complain(message: str) -> None:
    """Talk goes to stderr; stdout is for data."""
    print(f"aphroditectl: {message}", file=sys.stderr)
