"""When a process holds too much memory, and what is done about it. Pure: no clock, no signal, no file.

    resident memory                             what follows
    within the soft limit, or no limit          nothing, or `cleared` if it had been told
    above it for OVER_S, nothing finished yet   `useless`, told once: the next life would need as much
    above it for OVER_S                         `exceeded`, told; then it waits
    a quiet moment, or WAIT_S after that        `restart`, at most once in PERIOD_S per program, one program in SPACING_S

A moment is quiet for an engine when it computes nothing or a standby waits to take over, for an API worker when it
answers nobody. The hard limit is the kernel's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from aphrodited.config.values import format_size

OVER_S = 3.0
"""The peak of a step is no verdict."""

WAIT_S = 300.0
PERIOD_S = 600.0
SPACING_S = 30.0
"""Between restarts of two programs, so that the first one serves again."""


class MemoryAction(StrEnum):
    EXCEEDED = "exceeded"
    USELESS = "useless"
    RESTART = "restart"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class MemorySight:
    """One look at a process. limit_bytes: None for no limit."""

    pid: int
    resident_bytes: int
    limit_bytes: int | None
    num_finished: int
    is_quiet: bool


@dataclass(slots=True)
class _Watch:
    pid: int
    limit_bytes: int | None
    over_since_s: float | None = None
    told_at_s: float | None = None
    is_settled: bool = False  # nothing more is done about this life


@dataclass(slots=True)
class MemoryPolicy:
    """All programs under observation. restarted_at_s: by program, on the clock of `look`."""

    restarted_at_s: dict[str, float] = field(default_factory=dict)
    _watches: dict[str, _Watch] = field(default_factory=dict)

    def look(self, program: str, sight: MemorySight, now_s: float) -> MemoryAction | None:
        """Take one look; returns what is new about the program, if anything is."""
        watch = self._watches.get(program)
        if watch is None or watch.pid != sight.pid:
            watch = self._watches[program] = _Watch(sight.pid, sight.limit_bytes)
        if sight.limit_bytes is None or sight.resident_bytes <= sight.limit_bytes:
            return self._clear(program, watch, sight)
        if watch.limit_bytes != sight.limit_bytes:
            watch = self._watches[program] = _Watch(sight.pid, sight.limit_bytes)
        if watch.is_settled:
            return None
        if watch.over_since_s is None:
            watch.over_since_s = now_s
        if watch.told_at_s is not None:
            return self._restart_if_due(program, watch, sight.is_quiet, now_s)
        if now_s - watch.over_since_s < OVER_S:
            return None
        watch.told_at_s = now_s
        watch.is_settled = sight.num_finished == 0
        return MemoryAction.USELESS if watch.is_settled else MemoryAction.EXCEEDED

    def _clear(self, program: str, watch: _Watch, sight: MemorySight) -> MemoryAction | None:
        was_told = watch.told_at_s is not None
        self._watches[program] = _Watch(sight.pid, sight.limit_bytes)
        return MemoryAction.CLEARED if was_told else None

    def _restart_if_due(self, program: str, watch: _Watch, is_quiet: bool, now_s: float) -> MemoryAction | None:
        assert watch.told_at_s is not None
        may_leave = is_quiet or now_s - watch.told_at_s >= WAIT_S
        was_just_restarted = now_s - self.restarted_at_s.get(program, float("-inf")) < PERIOD_S
        is_turn = all(now_s - at_s >= SPACING_S for at_s in self.restarted_at_s.values())
        if not may_leave or was_just_restarted or not is_turn:
            return None
        self.restarted_at_s[program] = now_s
        watch.is_settled = True
        return MemoryAction.RESTART


def describe(action: MemoryAction, sight: MemorySight) -> str:
    """One sentence for people."""
    limit = "no limit" if sight.limit_bytes is None else format_size(sight.limit_bytes)
    holds = f"{sight.resident_bytes / 1024**2:.0f}MiB resident, memory_soft_limit is {limit}"
    match action:
        case MemoryAction.EXCEEDED:
            return f"{holds}; it is replaced at a quiet moment"
        case MemoryAction.USELESS:
            return f"{holds}; it holds this much before it has done anything, so a new one would too: raise the limit"
        case MemoryAction.CLEARED:
            return f"{holds} again"
        case MemoryAction.RESTART:
            return holds
