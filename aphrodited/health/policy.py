"""When a process that stands still is hanging, and what is done about it, step by step.

A verdict comes from the process's own page: `num_ticks` did not change for longer than its phase allows. Slow work
that ticks is never a hang, whatever it takes; silence on a socket is never looked at.

    standing on     moved      still, pause passed      still, and stopped (state T)
    -               -          suspect                  suspect
    suspect         cleared    dump (at once)           kill (at once)
    dump            cleared    abort                    kill (at once)
    abort           abort      kill                     kill (at once)
    kill            kill       unkillable (30 s)        unkillable (30 s)
    unkillable      for good, until the process is gone

Pure: no clock, no signal, no file. Instants come from an ObservedClock, so that time in which the monitor itself
did not look (overslept, stopped) is never held against anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aphrodited.config.schema import RecoveryConfig
from aphrodited.health.states import Action
from aphrodited.page import Page, Phase
from aphrodited.supervision.programs import Role

UNKILLABLE_AFTER_S = 30.0
LEAVING_S = 15.0
"""A process that leaves ticks no more while the interpreter and torch take themselves down."""


class Seen(Enum):
    """What one look at a judged process shows."""

    MOVED = "moved"
    STILL = "still"
    STOPPED = "stopped"  # still, and in process state T: it can act on no signal but SIGKILL


LADDER: dict[tuple[Action | None, Seen], Action | None] = {
    (None, Seen.MOVED): None,
    (None, Seen.STILL): Action.SUSPECT,
    (None, Seen.STOPPED): Action.SUSPECT,
    (Action.SUSPECT, Seen.MOVED): Action.CLEARED,
    (Action.SUSPECT, Seen.STILL): Action.DUMP,
    (Action.SUSPECT, Seen.STOPPED): Action.KILL,
    (Action.DUMP, Seen.MOVED): Action.CLEARED,
    (Action.DUMP, Seen.STILL): Action.ABORT,
    (Action.DUMP, Seen.STOPPED): Action.KILL,
    (Action.ABORT, Seen.MOVED): Action.ABORT,
    (Action.ABORT, Seen.STILL): Action.KILL,
    (Action.ABORT, Seen.STOPPED): Action.KILL,
    (Action.KILL, Seen.MOVED): Action.KILL,
    (Action.KILL, Seen.STILL): Action.UNKILLABLE,
    (Action.KILL, Seen.STOPPED): Action.UNKILLABLE,
    (Action.UNKILLABLE, Seen.MOVED): Action.UNKILLABLE,
    (Action.UNKILLABLE, Seen.STILL): Action.UNKILLABLE,
    (Action.UNKILLABLE, Seen.STOPPED): Action.UNKILLABLE,
}
"""The next rung. None is the ground; CLEARED leads back to it."""


def standstill_limit_s(role: Role, page: Page, recovery: RecoveryConfig, *, is_stopped: bool = False) -> float:
    """How long num_ticks may stand still in this phase, in seconds.

    Coming up is judged by progress alone, unless it is stopped (state T) and cannot make any. An engine ticks each second while idle and within a step, for which it
    may claim more (`allowance_s`); an event loop ticks each second.
    """
    if page.phase in (Phase.STARTING, Phase.LOADING):
        return recovery.hang_min_s if is_stopped else max(recovery.load_stall_s, page.allowance_s)
    if page.phase in (Phase.DRAINING, Phase.FAILED):
        return max(recovery.hang_min_s, page.allowance_s, LEAVING_S)
    if role is Role.ENGINE:
        return max(recovery.hang_min_s, page.allowance_s)
    return recovery.loop_hang_s


def pause_s(rung: Action | None, seen: Seen, limit_s: float, step_s: float) -> float:
    """How long a process stays on a rung before the next one is due, in seconds."""
    match rung:
        case None:
            return limit_s
        case Action.DUMP | Action.ABORT:
            return 0.0 if seen is Seen.STOPPED else step_s
        case Action.KILL:
            return UNKILLABLE_AFTER_S
        case _:
            return 0.0


class ObservedClock:
    """Seconds in which the monitor looked. A gap between two looks counts as `max_gap_s` at most."""

    def __init__(self, max_gap_s: float) -> None:
        self._max_gap_s = max_gap_s
        self._last_look_s: float | None = None
        self.now_s = 0.0

    def look(self, monotonic_s: float) -> float:
        """Advance to a look at this instant; returns the seconds that did not count."""
        if self._last_look_s is None:
            self._last_look_s = monotonic_s
        gap_s = monotonic_s - self._last_look_s
        counted_s = min(gap_s, self._max_gap_s)
        self._last_look_s = monotonic_s
        self.now_s += counted_s
        return gap_s - counted_s


@dataclass(slots=True)
class ProgressWatch:
    """One process under observation: how long it has stood still, and on which rung it is. Times are observed ones."""

    role: Role
    page: Page
    moved_at_s: float
    rung: Action | None = None
    climbed_at_s: float = 0.0

    def is_of(self, page: Page) -> bool:
        """Whether the page is of the process that is being watched."""
        return (page.pid, page.start_ticks) == (self.page.pid, self.page.start_ticks)

    def look(self, page: Page, is_stopped: bool, now_s: float, recovery: RecoveryConfig) -> list[Action]:
        """Take one look; returns what is to be done now, in order. page: of the same process."""
        moved = page.num_ticks != self.page.num_ticks
        if moved:
            self.moved_at_s = now_s
        self.page = page
        seen = Seen.MOVED if moved else Seen.STOPPED if is_stopped else Seen.STILL
        limit_s = standstill_limit_s(self.role, page, recovery, is_stopped=is_stopped)
        actions: list[Action] = []
        while (action := self._climb(seen, now_s, limit_s, recovery.ladder_step_s)) is not None:
            actions.append(action)
        return actions

    def _climb(self, seen: Seen, now_s: float, limit_s: float, step_s: float) -> Action | None:
        """Go one rung up (or down) if it is due; returns the new rung's action."""
        since_s = self.moved_at_s if self.rung is None else self.climbed_at_s
        waits = seen is not Seen.MOVED and now_s - since_s < pause_s(self.rung, seen, limit_s, step_s)
        following = LADDER[self.rung, seen]
        if waits or following is self.rung:
            return None
        self.rung = None if following is Action.CLEARED else following
        self.climbed_at_s = now_s
        return following

    def reason(self, now_s: float, recovery: RecoveryConfig, process_state: str | None) -> str:
        """One sentence for people: what stood still, for how long, against which limit."""
        page = self.page
        limit_s = standstill_limit_s(self.role, page, recovery, is_stopped=process_state == "T")
        details = {Phase.STEPPING: f" (step {page.num_steps})", Phase.FAILED: f" ({page.message})"}
        doing = page.phase.name.lower() + details.get(page.phase, "")
        return (
            f"no progress for {now_s - self.moved_at_s:.1f} s while {doing}, allowed are {limit_s:.1f} s; "
            f"{page.num_running} running, {page.num_waiting} waiting, process state {process_state or 'gone'}"
        )
