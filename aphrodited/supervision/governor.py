"""Decides when a program may start again: a pure function over the ledger. Knows no process, clock or file.

    seen in the ledger, for one program on this boot              next start
    nothing, a Reset, or a stop on request as the last word       at once
    a death after a life that did something                       at once
    a strike: a death before the first finished piece of work     strike_delay_s, doubled by each, at most 60 s, +-20 %
    exit code 78, max_strikes in a row, max_deaths in 10 min      parked: probed after probe_minutes, the last repeated
    requests found to be what it died of, or suspected of it      at once, the strikes are theirs
    a probe that strikes again                                    at the next probe
    a probe that did something                                    at once, all forgotten

A piece of work is a finished request (engine), an answer (API worker) or a round (monitor); an engine in standby
has nothing to finish, and that it loaded is enough. A life that outlasted the 10 minutes is no strike even if nobody
asked anything of it. Requests that end engines do not excuse more than max_deaths.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from aphrodited.config.schema import RecoveryConfig
from aphrodited.errors import EXIT_CONFIG
from aphrodited.supervision.ledger import Conviction, Death, LedgerEntry, Reset, Trial
from aphrodited.supervision.program_state import LaunchState

WINDOW_S = 600.0
MAX_DELAY_S = 60.0
JITTER = 0.2


class Decision(msgspec.Struct, frozen=True):
    """state: RUNNING (start now), BACKOFF or PARKED.  next_try_at_s: CLOCK_BOOTTIME, None for now.

    reason: why the program must wait, or else what its last strike was; empty if all is well.
    """

    state: LaunchState
    delay_s: float = 0.0
    next_try_at_s: float | None = None
    reason: str = ""
    num_strikes: int = 0


def decide(
    entries: Iterable[LedgerEntry],
    program: str,
    policy: RecoveryConfig,
    *,
    boot_id: str,
    now_s: float,
    jitter: float,
) -> Decision:
    """What to do with `program` at `now_s` (CLOCK_BOOTTIME). jitter: -1 to 1, the share of the +-20 % to apply."""
    record = _Record(policy)
    for entry in entries:
        if entry.program == program and entry.boot_id == boot_id:
            record.take(entry)
    if record.parked_at_s is not None:
        next_try_at_s = _next_probe_s(record.parked_at_s, record.last_strike_at_s, policy.probe_minutes)
        state = LaunchState.PARKED
    elif record.num_strikes:
        delay_s = min(MAX_DELAY_S, policy.strike_delay_s * 2 ** min(record.num_strikes - 1, 16))
        next_try_at_s = record.last_strike_at_s + delay_s * (1 + JITTER * jitter)
        state = LaunchState.BACKOFF
    else:
        return Decision(LaunchState.RUNNING)
    if next_try_at_s <= now_s:
        return Decision(LaunchState.RUNNING, reason=record.reason, num_strikes=record.num_strikes)
    return Decision(state, next_try_at_s - now_s, next_try_at_s, record.reason, record.num_strikes)


@dataclass(slots=True)
class _Record:
    """What the deaths so far amount to."""

    policy: RecoveryConfig
    num_strikes: int = 0
    last_strike_at_s: float = 0.0
    parked_at_s: float | None = None
    reason: str = ""
    recent_at_s: list[float] = field(default_factory=list)
    is_parked_for_strikes: bool = False

    def take(self, entry: LedgerEntry) -> None:
        if isinstance(entry, Reset) or (isinstance(entry, Death) and entry.requested):
            self._forget()
        elif isinstance(entry, Death):
            self._count(entry)
        elif isinstance(entry, (Trial, Conviction)):
            self._pardon()

    def _forget(self) -> None:
        self.num_strikes = 0
        self.parked_at_s = None
        self.reason = ""
        self.recent_at_s = []

    def _pardon(self) -> None:
        """Requests, not the program, are to blame for the strikes so far."""
        if self.parked_at_s is None or self.is_parked_for_strikes:
            self.num_strikes = 0
            self.parked_at_s = None
            self.reason = ""

    def _count(self, death: Death) -> None:
        is_strike = death.num_finished == 0 and not death.standby and death.uptime_s < WINDOW_S
        if self.parked_at_s is not None and not is_strike and death.code != EXIT_CONFIG:
            self._forget()  # a probe that worked
        self.recent_at_s = [at_s for at_s in self.recent_at_s if at_s > death.at_s - WINDOW_S] + [death.at_s]
        self.num_strikes = self.num_strikes + 1 if is_strike or death.code == EXIT_CONFIG else 0
        if self.num_strikes:
            self.last_strike_at_s = death.at_s
        if self.parked_at_s is not None:
            self.reason = f"still parked: {_describe(death)}"
            return
        self.reason = _describe(death) if self.num_strikes else ""
        why = self._why_parked(death)
        if why:
            self.parked_at_s = self.last_strike_at_s = death.at_s
            self.is_parked_for_strikes = self.num_strikes >= self.policy.max_strikes and death.code != EXIT_CONFIG
            self.reason = f"{why}; the last: {_describe(death)}" if death.code != EXIT_CONFIG else why

    def _why_parked(self, death: Death) -> str:
        if death.code == EXIT_CONFIG:
            return death.cause or "its configuration is wrong (exit code 78); see its log"
        if self.num_strikes >= self.policy.max_strikes:
            return f"died {self.num_strikes} times in a row before it did anything"
        if len(self.recent_at_s) >= self.policy.max_deaths:
            return f"died {len(self.recent_at_s)} times in 10 minutes"
        return ""


def _next_probe_s(parked_at_s: float, last_strike_at_s: float, probe_minutes: tuple[float, ...]) -> float:
    """The first instant of the schedule after the last strike, which was the end of the last probe if there was one."""
    schedule = sorted(probe_minutes) or [60.0]
    for minutes in schedule:
        if parked_at_s + 60 * minutes > last_strike_at_s:
            return parked_at_s + 60 * minutes
    period_s = max(60 * schedule[-1], 1.0)
    num_periods = int((last_strike_at_s - parked_at_s) // period_s) + 1
    return parked_at_s + num_periods * period_s


def _describe(death: Death) -> str:
    if death.cause:
        return death.cause
    return f"killed by {death.signal}" if death.signal else f"exited with code {death.code}"
