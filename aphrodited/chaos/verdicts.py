"""What each outcome of a chaos run is worth, given the undisturbed answer and the faults at that time.

    right     the undisturbed answer, to the last character
    wrong     another one, or the beginning of another one, or nothing that the API describes
    excused   failed or broken, while a fault was at work that takes its connections along
    failed    failed or broken without such a fault
    hung      no end
    left      its client went away; what it had was right
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aphrodited.bench.pauses import resumed_after_s
from aphrodited.chaos.answers import Answer
from aphrodited.chaos.client import Ending, Outcome
from aphrodited.chaos.faults import Action, Fault, Victim

DRAIN_TIMEOUT_S = 30.0
"""`api.drain_timeout_s` of the daemon: its default, longer than the longest that streams have been seen to wait for an engine."""

LASTS_S = {
    Action.KILL: 2.0,
    Action.STOP: 15.0,
    Action.TERMINATE: DRAIN_TIMEOUT_S + 5.0,
    Action.RESTART: DRAIN_TIMEOUT_S + 5.0,
}
"""How long after a fault a connection may be lost to it: until it is noticed, and what was to drain has drained."""


class Verdict(StrEnum):
    """See the module's table."""

    RIGHT = "right"
    WRONG = "wrong"
    EXCUSED = "excused"
    FAILED = "failed"
    HUNG = "hung"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Judged:
    """reason: in words, empty if all is well.  faults: those during the request, by name."""

    outcome: Outcome
    verdict: Verdict
    reason: str
    faults: tuple[str, ...]


def needs_reference(outcome: Outcome) -> bool:
    """Whether anything came that could be wrong."""
    return outcome.ending is Ending.ANSWERED or bool(outcome.answer.choices)


def judge(outcome: Outcome, reference: Answer | None, faults: Sequence[Fault]) -> Judged:
    """reference: the undisturbed answer, which may only be missing if there is nothing to compare."""
    met = [
        fault
        for fault in faults
        if fault.at_s < outcome.ended_at_s and outcome.sent_at_s < fault.at_s + LASTS_S[fault.kind.action]
    ]
    verdict, reason = _verdict(outcome, reference, is_excused=any(fault.kind.breaks_connections for fault in met))
    return Judged(outcome, verdict, reason, tuple(fault.kind.name for fault in met))


def _verdict(outcome: Outcome, reference: Answer | None, *, is_excused: bool) -> tuple[Verdict, str]:
    if outcome.ending is Ending.HUNG:
        return Verdict.HUNG, outcome.note
    if outcome.ending is Ending.SHAPELESS:
        return Verdict.WRONG, outcome.note
    if needs_reference(outcome):
        assert reference is not None
        if outcome.ending is Ending.ANSWERED:
            difference = outcome.answer.difference(reference)
            return (Verdict.WRONG, difference) if difference else (Verdict.RIGHT, "")
        if not outcome.answer.is_beginning_of(reference):
            return Verdict.WRONG, f"not the beginning of the answer: {outcome.answer.difference(reference)}"
    if outcome.ending is Ending.LEFT:
        return Verdict.LEFT, ""
    return (Verdict.EXCUSED if is_excused else Verdict.FAILED), f"{outcome.code} {outcome.note}".strip()


def recovery_times_s(faults: Iterable[Fault], outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """By kind of fault of an engine: from the fault to the next text of each stream that was flowing."""
    times: dict[str, list[float]] = defaultdict(list)
    for fault in faults:
        if fault.kind.victim is Victim.ENGINE and fault.kind.action in (Action.KILL, Action.STOP):
            found = (resumed_after_s(fault.at_s, outcome.text_times_s) for outcome in outcomes)
            times[fault.kind.name] += [time_s for time_s in found if time_s is not None]
    return dict(times)
