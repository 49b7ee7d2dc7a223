"""Carries a reload out: the new configuration in place first, then one restart after the other.

    1  effective.json, then given.json with the programs that are yet to be restarted: whatever starts from now on
       starts with the new values, and a reload that is cut short can be taken up again
    2  the ledger; what is parked or delayed is tried again
    3  the monitor; each model's standbys, then its active engine, which one of them replaces; API workers in turn

A program that does not come up with its new values takes the changes of its kind back: they leave effective.json and
given.json, and it starts again with what it had. Knows no key and no file of the operator's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from aphrodited.cli.target import Target
from aphrodited.cli.terminal import complain
from aphrodited.config.changes import Change, with_changes
from aphrodited.config.given import Given, write_given
from aphrodited.config.loader import write_effective
from aphrodited.config.schema import Apply, Config
from aphrodited.errors import EXIT_OK, AphroditeError
from aphrodited.health.orders import is_active
from aphrodited.health.probes import look_at
from aphrodited.page import Phase
from aphrodited.supervision.ledger import Ledger, LedgerEntry, Reset, stamp
from aphrodited.supervision.ledger import Reload as ReloadEntry
from aphrodited.supervision.program_state import LaunchState
from aphrodited.supervision.programs import STOP_SLACK_S, Program, Role, programs
from aphrodited.supervision.rpc import SupervisorClient, SupervisorDownError, SupervisorRefusedError

EXIT_FAILED = 1
POLL_S = 0.1
START_LIMIT_S = 1800.0
"""For a program that neither serves nor fails; the monitor ends a load that stands still long before."""

DAEMON = "aphrodited"
_DELAYED = (LaunchState.BACKOFF, LaunchState.PARKED)
_SERVING = (Phase.READY, Phase.STEPPING, Phase.STANDBY)
_UP = ("RUNNING", "STARTING", "BACKOFF", "EXITED")


@dataclass(frozen=True, slots=True)
class Reload:
    """changes: to be applied.  left_out, refused: those that need a full restart, by whether the rest is wanted.

    effective, given: before and after.  by: who asked, for the ledger.
    """

    changes: Sequence[Change]
    left_out: Sequence[Change]
    refused: Sequence[Change]
    effective: tuple[Config, Config]
    given: tuple[Given, Given]
    by: str


class _NotServingError(AphroditeError):
    """A program did not come up after its restart."""


def carry_out(target: Target, reload: Reload) -> int:
    """Apply the changes and return the exit code; every step and what failed has been said."""
    run = _Run(target, reload)
    run.put_in_place()
    exit_code = EXIT_OK
    for group in run.groups():
        if not run.restart(group):
            exit_code = EXIT_FAILED
    return exit_code


@dataclass(frozen=True, slots=True)
class _Group:
    """Programs that are restarted for the same changes, in this order."""

    apply: Apply
    programs: tuple[Program, ...]
    model: str | None = None

    def is_of(self, change: Change) -> bool:
        return change.apply is self.apply and change.model in (None, self.model)


class _Run:
    """One reload under way."""

    def __init__(self, target: Target, reload: Reload) -> None:
        self._target = target
        self._changes = list(reload.changes)
        self._effective = reload.effective[1]
        self._given = reload.given[1]
        self._key_files_before = reload.given[0].key_files
        self._ledger = Ledger(target.paths.ledger)
        self._by = reload.by
        self._client = SupervisorClient(target.paths.supervisor_socket)
        # What runs was started by the configuration before; what an operator stopped stays so.
        self._stop_timeouts_s = {each.name: each.stop_timeout_s for each in programs(reload.effective[0])}
        up = {info.name for info in self._client.processes() if info.statename in _UP}
        self._running = [program for program in programs(self._effective) if program.name in up]
        self._delayed = [program for program in self._running if self._delay_reason(program)]
        self._pending = {*reload.given[0].pending} & up
        for group in _groups(self._running):
            if any(group.is_of(change) for change in self._changes):
                self._pending |= {program.name for program in group.programs}

    def put_in_place(self) -> None:
        """From here on whatever starts, for whatever reason, starts with the new values."""
        write_effective(self._effective, self._target.paths.effective_config)
        self._remember()
        if self._changes:
            self._append(ReloadEntry(**stamp(DAEMON), changes=_lines(self._changes), by=self._by))
        for program in self._delayed:
            self._reset(program)

    def groups(self) -> list[_Group]:
        """What is yet to be restarted, in the order in which that is done."""
        return _groups([program for program in self._running if program.name in self._pending])

    def restart(self, group: _Group) -> bool:
        """One program after the other, each once the one before serves; False if one did not and this was undone."""
        done: list[Program] = []
        for program in sorted(group.programs, key=lambda program: is_active(self._target.paths, program)):
            try:
                self._restart(program)
            except (_NotServingError, SupervisorRefusedError) as error:
                if self._target.daemon_pid() is None:
                    raise SupervisorDownError("the daemon stopped meanwhile; it reads its file when it starts") from None
                complain(f"{program.name} did not come up: {error}")
                if self._undo(group, program, str(error)):
                    for each in done:
                        self._restart(each)
                return False
            done.append(program)
            self._pending.discard(program.name)
            self._remember()
        return True

    def _restart(self, program: Program) -> None:
        """Raises _NotServingError with the reason, SupervisorRefusedError if the supervisor does not do it."""
        if program in self._delayed:
            return  # it was reset, and starts with the new values
        old_pid = look_at(program.name, self._target.paths).pid
        self._client.restart(program.name, timeout_s=self._stop_timeouts_s[program.name] + STOP_SLACK_S)
        give_up_at_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < give_up_at_s and self._target.daemon_pid() is not None:
            seen = look_at(program.name, self._target.paths)
            if seen.pid is not None and seen.pid != old_pid:
                if reason := self._delay_reason(program):
                    raise _NotServingError(reason)
                if seen.page is not None and seen.page.phase in _SERVING:
                    print(f"{program.name} restarted", flush=True)
                    return
            time.sleep(POLL_S)
        raise _NotServingError(f"it does not serve after {START_LIMIT_S:.0f} s")

    def _undo(self, group: _Group, program: Program, reason: str) -> bool:
        """Take back what the program was restarted for, and let it start with what it had; whether there was any."""
        undone = [change for change in self._changes if group.is_of(change)]
        if not undone:
            complain("the change came with an earlier reload: mend the file, then reload again")
            return False
        back = [change.reversed() for change in undone]
        self._changes = [change for change in self._changes if change not in undone]
        self._effective = with_changes(self._effective, back)
        config = with_changes(self._given.config, back)
        key_files = self._key_files_before if group.apply is Apply.API else self._given.key_files
        self._given = msgspec.structs.replace(self._given, config=config, key_files=key_files)
        self._pending -= {each.name for each in group.programs}
        write_effective(self._effective, self._target.paths.effective_config)
        self._remember()
        self._append(ReloadEntry(**stamp(DAEMON), changes=_lines(undone), by=self._by, undone=reason))
        self._reset(program)
        complain(f"taken back: {'; '.join(map(str, undone))}")
        return True

    def _remember(self) -> None:
        self._given = msgspec.structs.replace(self._given, pending=tuple(sorted(self._pending)))
        write_given(self._given, self._target.paths.given)

    def _reset(self, program: Program) -> None:
        self._append(Reset(**stamp(program.name), by=f"a reload by {self._by}"))

    def _append(self, entry: LedgerEntry) -> None:
        try:
            self._ledger.append(entry)
        except OSError as error:  # a full disk keeps nobody from reloading
            complain(f"the ledger could not be written: {error}")

    def _delay_reason(self, program: Program) -> str:
        """Why the program is parked or delayed; empty if it is not."""
        launch = look_at(program.name, self._target.paths).launch
        return launch.reason or launch.state if launch is not None and launch.state in _DELAYED else ""


def _groups(chosen: Sequence[Program]) -> list[_Group]:
    """The monitor, the engines of each model, the API workers; those that there are."""
    engines = [program for program in chosen if program.role is Role.ENGINE]
    groups = [_Group(Apply.MONITOR, tuple(program for program in chosen if program.role is Role.MONITOR))]
    for model in dict.fromkeys(program.model for program in engines):
        groups.append(_Group(Apply.ENGINE, tuple(engine for engine in engines if engine.model == model), model))
    groups.append(_Group(Apply.API, tuple(program for program in chosen if program.role is Role.API)))
    return [group for group in groups if group.programs]


def _lines(changes: Sequence[Change]) -> str:
    return "\n".join(map(str, changes))
