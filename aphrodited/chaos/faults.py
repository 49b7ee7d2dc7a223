"""What is done to a daemon in a chaos run, when, and to whom: all drawn from the seed, as far as there is a victim.

    action       victims                                    what must follow
    kill         every kind of process                      a new life, by the supervisor or the service
    stop         the same; the signal is SIGSTOP            a verdict on who stands still, then as above
    terminate    the same                                   a drain, or its end if there is one already, then as above
    restart      roles, by `aphroditectl restart`           the same on request

Does what it is told to whom it is given; how clients fare is not its business.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from aphrodited.chaos.targets import Target
from aphrodited.procfs import process_state


class Victim(StrEnum):
    ENGINE = "engine"
    STANDBY = "standby"
    API = "api worker"
    LEAVING_API = "leaving api worker"
    MONITOR = "monitor"
    DAEMON = "supervisord"


class Action(StrEnum):
    KILL = "kill"
    STOP = "stop"
    TERMINATE = "terminate"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Kind:
    """One line of the table. breaks_connections: those of clients that were connected may be lost, and their requests."""

    victim: Victim
    action: Action
    weight: int
    breaks_connections: bool = False

    @property
    def name(self) -> str:
        return f"{self.action} {self.victim}"

    def may_hit(self, target: Target) -> bool:
        return _IS_VICTIM[self.victim](target)


KINDS = (
    Kind(Victim.ENGINE, Action.KILL, 20),
    Kind(Victim.ENGINE, Action.STOP, 8),
    Kind(Victim.ENGINE, Action.TERMINATE, 5),
    Kind(Victim.ENGINE, Action.RESTART, 4),
    Kind(Victim.STANDBY, Action.KILL, 10),
    Kind(Victim.STANDBY, Action.STOP, 5),
    Kind(Victim.STANDBY, Action.TERMINATE, 3),
    Kind(Victim.API, Action.KILL, 10, breaks_connections=True),
    Kind(Victim.API, Action.STOP, 4, breaks_connections=True),
    Kind(Victim.API, Action.TERMINATE, 4),
    # Asked for the second time, it leaves at once and tells its clients so.
    Kind(Victim.LEAVING_API, Action.TERMINATE, 1, breaks_connections=True),
    Kind(Victim.LEAVING_API, Action.KILL, 1, breaks_connections=True),
    Kind(Victim.API, Action.RESTART, 4),
    Kind(Victim.MONITOR, Action.KILL, 7),
    Kind(Victim.MONITOR, Action.STOP, 3),
    Kind(Victim.MONITOR, Action.RESTART, 3),
    Kind(Victim.DAEMON, Action.KILL, 3, breaks_connections=True),
    Kind(Victim.DAEMON, Action.STOP, 1, breaks_connections=True),
    Kind(Victim.DAEMON, Action.TERMINATE, 2, breaks_connections=True),
)
_LESSER_KINDS = tuple(kind for kind in KINDS if kind.victim is not Victim.DAEMON)
"""What is done instead of something that has no victim now: the daemon, which is always there, would get it all."""

_SIGNALS = {Action.KILL: signal.SIGKILL, Action.STOP: signal.SIGSTOP, Action.TERMINATE: signal.SIGTERM}
_ROLES = {Victim.ENGINE: "engine", Victim.API: "api", Victim.MONITOR: "monitor"}
_IS_VICTIM: dict[Victim, Callable[[Target], bool]] = {
    Victim.ENGINE: lambda target: target.is_active_engine,
    Victim.STANDBY: lambda target: target.is_waiting_engine,
    Victim.API: lambda target: target.program.startswith("api") and not target.is_draining,
    Victim.LEAVING_API: lambda target: target.program.startswith("api") and target.is_draining,
    Victim.MONITOR: lambda target: target.program == "monitor",
    Victim.DAEMON: lambda target: not target.program,
}

MAX_PAUSE_FACTOR = 3.0
MIN_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done. at_s: monotonic.  target: in words."""

    at_s: float
    kind: Kind
    target: str


def pauses_s(seed: int, mean_s: float) -> Iterator[float]:
    """How long to wait before each fault: as if nothing knew of the one before, but never for very long."""
    rng = random.Random(f"pauses {seed}")
    while True:
        yield min(max(MIN_PAUSE_S, rng.expovariate(1 / mean_s)), MAX_PAUSE_FACTOR * mean_s)


class FaultMaker:
    """Does one thing after the other to the daemon that a service keeps."""

    def __init__(self, config_file: Path, seed: int) -> None:
        self.done: list[Fault] = []
        self._config_file = config_file
        self._rng = random.Random(f"faults {seed}")
        self._restart: asyncio.subprocess.Process | None = None

    async def strike(self, targets: list[Target]) -> Fault | None:
        """The next fault, of a kind that has a victim now; None if nobody is there."""
        kinds: tuple[Kind, ...] = KINDS
        for _ in range(4 * len(KINDS)):
            (kind,) = self._rng.choices(kinds, [kind.weight for kind in kinds])
            kinds = _LESSER_KINDS
            victims = [target for target in targets if kind.may_hit(target) and not _is_stopped(target)]
            if victims and (target := await self._do(kind, self._rng.choice(victims))):
                fault = Fault(time.monotonic(), kind, target)
                self.done.append(fault)
                return fault
        return None

    async def finish(self) -> None:
        """Return when the restart under way has ended: cut short, it could leave a program stopped."""
        if self._restart is not None:
            await self._restart.wait()

    async def _do(self, kind: Kind, target: Target) -> str:
        """The target in words; empty if nothing was done."""
        if kind.action is not Action.RESTART:
            return target.name if target.send(_SIGNALS[kind.action]) else ""
        if self._restart is not None and self._restart.returncode is None:
            return ""
        role = _ROLES[kind.victim]
        command = ["-m", "aphrodited.cli.aphroditectl", "--config", str(self._config_file), "restart", role]
        silent = asyncio.subprocess.DEVNULL
        # Its failure is no fault of ours to judge: whom it talks to may be killed meanwhile.
        self._restart = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdin=silent, stdout=silent, stderr=silent
        )
        return f"every {role}"


def _is_stopped(target: Target) -> bool:
    """It has had its fault, and is about to be found."""
    return process_state(target.pid) == "T"
