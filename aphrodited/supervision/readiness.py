"""Whether the daemon is ready, and what there is to say of it, from the pages and launch states of its programs.

    model     is what its engine nearest to serving is; settled if that serves, or if all its engines are parked
    daemon    ready when every model but those that were unloaded is settled, every API worker is READY or parked, and
              one at least is READY

Reads nothing itself: it is given what each living process says. Knows neither systemd nor terminals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

import msgspec

from aphrodited.page import Page, Phase
from aphrodited.supervision.program_state import LaunchState, ProgramState
from aphrodited.supervision.programs import Program, Role

SERVING_PHASES = (Phase.READY, Phase.STEPPING)


class Condition(StrEnum):
    """A program's condition, as far as readiness goes."""

    DOWN = "down"
    STANDBY = "standby"  # loaded; serves as soon as it is promoted
    STARTING = "starting"
    WAITING = "waiting"  # for its turn, after strikes
    PARKED = "parked"
    READY = "ready"


class Sight(msgspec.Struct, frozen=True):
    """What a living process says of itself; both None if it says nothing yet."""

    pid: int
    page: Page | None = None
    launch: ProgramState | None = None


class Readiness(msgspec.Struct, frozen=True):
    """is_ready: see above.  text: one line for systemctl status.  conditions: of each program."""

    is_ready: bool
    text: str
    conditions: dict[str, Condition]


def condition_of(sight: Sight | None) -> Condition:
    if sight is None:
        return Condition.DOWN
    if sight.launch is not None and sight.launch.state is LaunchState.PARKED:
        return Condition.PARKED
    if sight.launch is not None and sight.launch.state is LaunchState.BACKOFF:
        return Condition.WAITING
    if sight.page is not None and sight.page.phase in SERVING_PHASES:
        return Condition.READY
    if sight.page is not None and sight.page.phase is Phase.STANDBY:
        return Condition.STANDBY
    return Condition.STARTING


def judge(programs: Sequence[Program], sights: Mapping[str, Sight], unloaded: Collection[str] = ()) -> Readiness:
    """sights: of the programs that have a process now.  unloaded: models that are not to be served."""
    conditions = {program.name: condition_of(sights.get(program.name)) for program in programs}
    api = [conditions[program.name] for program in programs if program.role is Role.API]
    models: dict[str, list[Program]] = {}
    for program in programs:
        if program.role is Role.ENGINE and program.model is not None and program.model not in unloaded:
            models.setdefault(program.model, []).append(program)
    best = {
        model: min(engines, key=lambda e: _distance(conditions[e.name], sights.get(e.name)))
        for model, engines in models.items()
    }
    is_settled = all(conditions[engine.name] in (Condition.READY, Condition.PARKED) for engine in best.values())
    api_is_up = Condition.READY in api and all(each in (Condition.READY, Condition.PARKED) for each in api)
    texts = [_describe(model, conditions[engine.name], sights.get(engine.name)) for model, engine in best.items()]
    texts += [f"{model} is unloaded" for model in sorted(unloaded)]
    if not api_is_up:
        texts.append(f"{api.count(Condition.READY)} of {len(api)} API workers ready")
    return Readiness(is_settled and api_is_up, "; ".join(texts), conditions)


_BEST_FIRST = (
    Condition.READY,
    Condition.STANDBY,
    Condition.STARTING,
    Condition.WAITING,
    Condition.DOWN,
    Condition.PARKED,
)


def _distance(condition: Condition, sight: Sight | None) -> tuple[int, bool]:
    """How far an engine is from serving: the nearest one speaks for its model."""
    return _BEST_FIRST.index(condition), sight is None or sight.page is None


def _describe(model: str, condition: Condition, sight: Sight | None) -> str:
    page = sight.page if sight else None
    launch = sight.launch if sight else None
    if condition is Condition.READY:
        return f"{model} serves"
    if condition is Condition.STANDBY:
        return f"{model} changes over to its standby"
    if condition is Condition.STARTING and page is not None and page.phase is Phase.LOADING:
        return f"{model} loads, {page.progress:.0%}"
    if condition in (Condition.PARKED, Condition.WAITING) and launch is not None:
        return f"{model} is {'parked' if condition is Condition.PARKED else 'waiting to start'}: {launch.reason}"
    return f"{model} is {'down' if condition is Condition.DOWN else 'starting'}"
