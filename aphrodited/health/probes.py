"""Single looks at processes and files: what the page, the launcher and the kernel say at this moment.

Reads and never judges; no look blocks and none raises for something that is gone.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from aphrodited.page import Page, read_page
from aphrodited.paths import DaemonPaths
from aphrodited.procfs import is_same_process, process_start_ticks, process_state
from aphrodited.supervision.program_state import ProgramState, read_program_state

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Look(msgspec.Struct, frozen=True):
    """What a program's page and launcher say. pid: of the process they speak of, if it lives, else None.

    page and launch are those of that process, None if they are left over from an earlier one.
    """

    pid: int | None
    page: Page | None
    launch: ProgramState | None


NOTHING_SEEN = Look(None, None, None)


def look_at(program: str, paths: DaemonPaths) -> Look:
    """Read a program's page and launch state, and keep what concerns its living process."""
    page = read_page(paths.page(program))
    launch = read_program_state(paths.program_state(program))
    if page is not None and not is_same_process(page.pid, page.start_ticks):
        page = None
    if launch is not None and process_state(launch.pid) in (None, "Z"):
        launch = None
    if page is not None and launch is not None and page.pid != launch.pid:
        # Both live: the one that started last is the program's process, the other one is about to go.
        newer_launch = (process_start_ticks(launch.pid) or 0) > page.start_ticks
        page, launch = (None, launch) if newer_launch else (page, None)
    witness = page or launch
    return Look(witness.pid if witness else None, page, launch)


def process_uptime_s(pid: int, now_boottime_s: float) -> float | None:
    """Seconds since a process started; None if there is none. Exact to a clock tick (10 ms)."""
    start_ticks = process_start_ticks(pid)
    return None if start_ticks is None else max(0.0, now_boottime_s - start_ticks / _CLOCK_TICKS)


def locked_at_s(path: Path) -> float | None:
    """When whoever holds the daemon's lock took it, by the boot clock; None if the file does not say so."""
    try:
        return float(path.read_text("ascii").split("\n")[1])
    except (OSError, ValueError, IndexError):
        return None


def lock_holder(path: Path) -> int | None:
    """The pid that holds a flock on a file, by /proc/locks (proc(5)); None if nobody does.

    Trying the lock instead would make a daemon that starts at this moment believe it is taken.
    """
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return None
