"""Writes deaths and verdicts to the ledger on behalf of the supervisor, and tells people about deaths.

A ledger that cannot be written (disk full) loses nothing within bounds: entries wait in memory for the next try.
Knows what a process left behind; decides nothing.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable

from aphrodited.page import read_page
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.deaths import OomCounter, describe_death, last_verdict
from aphrodited.supervision.ledger import Death, Ledger, LedgerEntry, Verdict, stamp
from aphrodited.supervision.program_state import ProgramState
from aphrodited.supervision.programs import Program

MAX_PENDING = 256


class Obituary:
    """The ledger's writer in the supervisor's process."""

    def __init__(self, paths: DaemonPaths, announce: Callable[[str], None]) -> None:
        self._paths = paths
        self._announce = announce
        self._ledger = Ledger(paths.ledger)
        self._oom = OomCounter()
        self._pending: deque[LedgerEntry] = deque(maxlen=MAX_PENDING)

    def write(
        self, program: Program, pid: int, wait_status: int | None, requested: bool, launch: ProgramState | None
    ) -> bool:
        """Record a death; False if the ledger could not be written now. wait_status: as of waitpid(2)."""
        page = read_page(self._paths.page(program.name))
        verdict = None if requested else self._verdict(program.name, pid)
        is_replaced = verdict is not None and verdict.verdict == "memory"
        death = describe_death(
            program.name,
            program.model,
            pid,
            wait_status,
            requested=requested or is_replaced,
            oom=self._oom.has_grown() and not requested and _is_sigkill(wait_status),
            page=page if page and page.pid == pid else None,
            launch=launch,
            verdict=verdict,
        )
        if not requested:
            self._tell(program, death, "is replaced" if is_replaced else "died")
        return self._append(death)

    def write_verdict(self, program: Program, pid: int, reason: str) -> None:
        """Record that the supervisor itself kills a process that hangs."""
        self._append(
            Verdict(
                **stamp(program.name), pid=pid, verdict="hang", action="kill", reason=reason, model=program.model
            )
        )

    def write_pending(self) -> None:
        """Try again what could not be written."""
        while self._pending:
            try:
                self._ledger.append(self._pending[0])
            except OSError:
                return
            self._pending.popleft()
            if not self._pending:
                self._announce("the ledger can be written again")

    def _append(self, entry: LedgerEntry) -> bool:
        try:
            self._ledger.append(entry)
        except OSError as error:
            if not self._pending:
                self._announce(f"the ledger cannot be written ({error}); starts are slowed down until it can")
            self._pending.append(entry)
            return False
        return True

    def _verdict(self, program: str, pid: int) -> Verdict | None:
        try:
            return last_verdict(self._ledger.read(), program, pid)
        except OSError:
            return None

    def _tell(self, program: Program, death: Death, verb: str) -> None:
        self._announce(f"{program.title} {verb} (pid {death.pid}, after {death.uptime_s:.0f} s): {death.cause}")


def _is_sigkill(wait_status: int | None) -> bool:
    return wait_status is not None and os.WIFSIGNALED(wait_status) and os.WTERMSIG(wait_status) == signal.SIGKILL
