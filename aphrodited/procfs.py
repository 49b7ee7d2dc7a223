"""Facts about processes that /proc tells: identity, state, memory.

A pid alone is not an identity, since numbers are used again; a pid with its start time is.
"""

from __future__ import annotations

import os
from pathlib import Path


def _stat_fields(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third (state) on, proc(5); None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()  # the command may hold spaces and parentheses


def process_start_ticks(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is none."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def process_state(pid: int) -> str | None:
    """One letter as in ps: R, S, D, T (stopped), Z (dead, not yet reaped); None if there is none."""
    fields = _stat_fields(pid)
    return fields[0] if fields else None


def is_same_process(pid: int, start_ticks: int) -> bool:
    """Whether the process of that pid is still the one that started then, and not a zombie."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] != "Z" and int(fields[19]) == start_ticks


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process in bytes; None if there is none."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
