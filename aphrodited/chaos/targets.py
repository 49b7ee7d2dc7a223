"""The processes of one daemon, as victims: found below the daemon's own process, and hit only as long as they are themselves.

A signal goes through a pidfd that was opened before the identity was checked, so it can reach nobody else. Knows no
schedule.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aphrodited.page import Page, Phase, read_page
from aphrodited.paths import DaemonPaths
from aphrodited.procfs import process_start_ticks

PROGRAM = b"--program"
"""Launchers and workers alike are told their name by it."""


@dataclass(frozen=True, slots=True)
class Target:
    """One process. program: empty for the daemon itself.  page: its own, None while it has written none."""

    pid: int
    start_ticks: int
    program: str
    page: Page | None

    @property
    def is_active_engine(self) -> bool:
        return self.program.startswith("engine") and self.page is not None and self.page.generation > 0

    @property
    def is_waiting_engine(self) -> bool:
        """Whether it stands by, loads, or waits for its turn."""
        return self.program.startswith("engine") and not self.is_active_engine

    @property
    def is_draining(self) -> bool:
        """Whether it finishes what it has and takes nothing new."""
        return self.page is not None and self.page.phase is Phase.DRAINING

    @property
    def name(self) -> str:
        phase = self.page.phase if self.page is not None else Phase.STARTING
        return f"{self.program or 'the daemon'} ({phase.name.lower()})" if self.program else "the daemon"

    def send(self, number: signal.Signals) -> bool:
        """Whether it was still there to get the signal."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if process_start_ticks(self.pid) != self.start_ticks:
                return False
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True


def targets(daemon_pid: int, paths: DaemonPaths) -> list[Target]:
    """The daemon that we started and its programs, as they are now."""
    daemon_ticks = process_start_ticks(daemon_pid)
    found = [] if daemon_ticks is None else [Target(daemon_pid, daemon_ticks, "", None)]
    for pid in children_of(daemon_pid):
        start_ticks, program = process_start_ticks(pid), _program_of(pid, paths)
        if start_ticks is not None and program is not None:
            page = read_page(paths.page(program))
            is_own = page is not None and (page.pid, page.start_ticks) == (pid, start_ticks)
            found.append(Target(pid, start_ticks, program, page if is_own else None))
    return found


def descendants_of(pid: int) -> Iterator[int]:
    """Every process below it, at any depth."""
    for child in children_of(pid):
        yield child
        yield from descendants_of(child)


def children_of(pid: int) -> list[int]:
    children: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, path.read_text().split())
        except OSError:  # that thread, or all of it, is gone
            continue
    return children


def _program_of(pid: int, paths: DaemonPaths) -> str | None:
    """None unless it is of this very daemon."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    is_ours = PROGRAM in words and str(paths.runtime_dir).encode() in words
    return words[words.index(PROGRAM) + 1].decode() if is_ours else None
