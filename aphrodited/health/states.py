"""The state of one process, out of what four witnesses say of it: a table, without I/O.

    witness                      says                                  used when
    the supervisor               RUNNING, STOPPING, EXITED ...         always
    the monitor (its verdicts)   suspect, dump, abort, kill, ...       of this very process
    the launcher                 waiting, backoff, parked, running     of this very process
    the process (its page)       phase                                 of this very process

The first witness with a say wins, from top to bottom. What an earlier process of the same name left behind is not
a witness: the caller compares pids and passes None. Knows no clock, no file and no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TypeVar

from aphrodited.page import Phase
from aphrodited.supervision.desired import Desired
from aphrodited.supervision.program_state import LaunchState

Engine = TypeVar("Engine")


class State(StrEnum):
    STARTING = "starting"
    LOADING = "loading"
    STANDBY = "standby"
    READY = "ready"
    SUSPECT = "suspect"  # stands still while there is work; the ladder is being climbed
    DRAINING = "draining"  # takes no new work, finishes what it has; a model also when an operator drains it
    BACKOFF = "backoff"  # its next start is seconds away
    PARKED = "parked"  # given up for now; tried again on a schedule or after a reset
    STOPPING = "stopping"
    STOPPED = "stopped"
    UNKILLABLE = "unkillable"  # outlived SIGKILL for 30 s
    UNLOADED = "unloaded"  # of a model: stopped until an operator loads it


class Action(StrEnum):
    """What the monitor does about a hanging process, in order, and its two ends."""

    SUSPECT = "suspect"
    DUMP = "dump"
    ABORT = "abort"
    KILL = "kill"
    UNKILLABLE = "unkillable"
    CLEARED = "cleared"  # it moved again before it came to the abort


WITHOUT_PROCESS: dict[str, State] = {
    "STOPPED": State.STOPPED,
    "STARTING": State.STARTING,
    "BACKOFF": State.BACKOFF,
    "EXITED": State.STARTING,  # its next life is milliseconds away
    "FATAL": State.PARKED,
    "UNKNOWN": State.STOPPED,
}
"""By the supervisor's word alone: there is no process that anybody else could speak of."""

ACTION_STATES: dict[Action, State | None] = {
    Action.SUSPECT: State.SUSPECT,
    Action.DUMP: State.SUSPECT,
    Action.ABORT: State.SUSPECT,
    Action.KILL: State.SUSPECT,
    Action.UNKILLABLE: State.UNKILLABLE,
    Action.CLEARED: None,
}

LAUNCH_STATES: dict[LaunchState, State | None] = {
    LaunchState.WAITING: State.STARTING,
    LaunchState.BACKOFF: State.BACKOFF,
    LaunchState.PARKED: State.PARKED,
    LaunchState.RUNNING: None,
}

PHASE_STATES: dict[Phase, State] = {
    Phase.STARTING: State.STARTING,
    Phase.LOADING: State.LOADING,
    Phase.STANDBY: State.STANDBY,
    Phase.READY: State.READY,
    Phase.STEPPING: State.READY,
    Phase.DRAINING: State.DRAINING,
    Phase.FAILED: State.STOPPING,
}


def process_state(
    statename: str, action: Action | None, launch: LaunchState | None, phase: Phase | None
) -> State:
    """The state of a process. statename: the supervisor's; the others None if they said nothing of this process."""
    without_process = WITHOUT_PROCESS.get(statename)
    if without_process is not None:
        return without_process
    judged = ACTION_STATES[action] if action is not None else None
    if judged is State.UNKILLABLE:
        return judged
    if statename == "STOPPING":
        return State.DRAINING if phase is Phase.DRAINING else State.STOPPING
    launched = LAUNCH_STATES[launch] if launch is not None else None
    reported = PHASE_STATES[phase] if phase is not None else State.STARTING
    return judged or launched or reported


_BEST_FIRST = (
    State.READY,
    State.SUSPECT,
    State.STANDBY,
    State.DRAINING,
    State.LOADING,
    State.STARTING,
    State.BACKOFF,
    State.UNKILLABLE,
    State.PARKED,
    State.STOPPING,
    State.UNLOADED,
    State.STOPPED,
)


def nearest_to_serving(engines: Iterable[Engine], state_of: Callable[[Engine], State]) -> Engine:
    """Of a model's engines (at least one) the one whose state is the model's."""
    return min(engines, key=lambda engine: _BEST_FIRST.index(state_of(engine)))


def model_state(best: State, desired: Desired) -> State:
    """The state of a model whose engine nearest to serving is in `best`."""
    if desired is Desired.DRAINED and best in (State.READY, State.STANDBY):
        return State.DRAINING
    if desired is not Desired.UNLOADED:
        return best
    if best is State.STOPPED:
        return State.UNLOADED
    return State.DRAINING if best in (State.READY, State.SUSPECT, State.DRAINING) else State.STOPPING


class Standing(StrEnum):
    """The daemon as a whole."""

    READY = "ready"  # everything that is configured serves, but for what an operator unloaded
    DEGRADED = "degraded"  # something serves, or still answers, something does not
    STARTING = "starting"  # nothing serves yet, or for the moment
    DOWN = "down"  # there is no daemon, or nothing of it will serve by itself


_SETTLED = frozenset({State.STOPPED, State.STOPPING, State.PARKED, State.UNKILLABLE})


def daemon_standing(supervisor: State, models: Iterable[State], others: Iterable[State]) -> Standing:
    """The standing of a daemon. others: its API workers and its monitor."""
    models, others = [state for state in models if state is not State.UNLOADED], list(others)
    if supervisor is State.STOPPED:
        return Standing.DOWN
    if all(state is State.READY for state in (supervisor, *models, *others)):
        return Standing.READY
    if State.READY in models or State.DRAINING in models:
        return Standing.DEGRADED
    return Standing.DOWN if models and all(state in _SETTLED for state in models) else Standing.STARTING
