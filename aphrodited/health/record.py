"""What the ledger says of each program: how it ended last, how often, and the last verdict on a process.

Reads entries, not files; other boots' entries count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from aphrodited.supervision.ledger import Death, LedgerEntry, Verdict, boot_id


class Record:
    """The ledger of this boot by program. Deaths are counted since the daemon started; without one none is."""

    def __init__(self, entries: Iterable[LedgerEntry], daemon_started_at_s: float | None) -> None:
        self.daemon_started_at_s = daemon_started_at_s
        self.last_deaths: dict[str, Death] = {}
        self.last_verdicts: dict[tuple[str, int], Verdict] = {}
        self.last_memory_verdicts: dict[tuple[str, int], Verdict] = {}
        self.num_deaths: dict[str, int] = {}
        this_boot = boot_id()
        for entry in entries:
            if entry.boot_id != this_boot:
                continue
            if isinstance(entry, Death):
                self.last_deaths[entry.program] = entry
                if daemon_started_at_s is not None and entry.at_s >= daemon_started_at_s:
                    self.num_deaths[entry.program] = self.num_deaths.get(entry.program, 0) + 1
            elif isinstance(entry, Verdict):
                of_kind = self.last_memory_verdicts if entry.verdict == "memory" else self.last_verdicts
                of_kind[entry.program, entry.pid] = entry

    def verdict_on(self, program: str, pid: int | None) -> Verdict | None:
        """The last verdict on that very process's progress."""
        return None if pid is None else self.last_verdicts.get((program, pid))

    def memory_complaint(self, program: str, pid: int | None) -> str:
        """What the monitor has against that very process's memory now; empty if nothing."""
        verdict = None if pid is None else self.last_memory_verdicts.get((program, pid))
        return "" if verdict is None or verdict.action == "cleared" else verdict.reason


class LastExit(msgspec.Struct, frozen=True):
    """How the previous life of a process ended; `summary` says it in one line."""

    time: str
    pid: int
    summary: str
    cause: str
    code: int | None
    signal: str | None
    oom: bool
    requested: bool
    uptime_s: float


def describe_exit(death: Death) -> LastExit:
    """A death in words. The summary adds to its cause what that leaves out: signal or code, and circumstances."""
    how = death.signal or (f"exit code {death.code}" if death.code is not None else "")
    notes = [how, "core dumped" if death.core else ""]
    added = ", ".join(note for note in notes if note and note not in death.cause)
    return LastExit(
        time=death.time,
        pid=death.pid,
        summary=f"{death.cause} ({added})" if death.cause and added else death.cause or added or "ended",
        cause=death.cause,
        code=death.code,
        signal=death.signal,
        oom=death.oom,
        requested=death.requested,
        uptime_s=death.uptime_s,
    )
