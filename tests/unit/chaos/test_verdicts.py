"""What an outcome is worth, with the faults of its time."""

from __future__ import annotations

import pytest

from aphrodited.chaos.answers import Answer, Choice
from aphrodited.chaos.cases import COMPLETIONS, Case
from aphrodited.chaos.client import Ending, Outcome
from aphrodited.chaos.faults import KINDS, Action, Fault, Victim
from aphrodited.chaos.verdicts import Verdict, judge, recovery_times_s

CASE = Case(1, "completion", COMPLETIONS, {"stream": True})


def said(text: str, ending: tuple[str, None] | None = ("length", None)) -> Answer:
    return Answer({0: Choice(text, None, ending)})


def outcome(ending: Ending, answer: Answer | None = None, times_s: list[float] | None = None) -> Outcome:
    return Outcome(CASE, 10.0, 20.0, ending, answer or Answer(), text_times_s=times_s or [])


def fault(victim: Victim, action: Action, at_s: float = 15.0) -> Fault:
    (kind,) = [kind for kind in KINDS if (kind.victim, kind.action) == (victim, action)]
    return Fault(at_s, kind, "somebody")


def test_an_answer_is_right_or_wrong() -> None:
    assert judge(outcome(Ending.ANSWERED, said("abc")), said("abc"), []).verdict is Verdict.RIGHT
    assert judge(outcome(Ending.ANSWERED, said("abx")), said("abc"), []).verdict is Verdict.WRONG


def test_what_came_before_a_failure_must_be_right_too() -> None:
    api_kill = fault(Victim.API, Action.KILL)
    broken = outcome(Ending.BROKEN, said("ab", None))
    assert judge(broken, said("abc"), [api_kill]).verdict is Verdict.EXCUSED
    assert judge(broken, said("xyz"), [api_kill]).verdict is Verdict.WRONG
    assert judge(outcome(Ending.LEFT, said("ab", None)), said("abc"), []).verdict is Verdict.LEFT
    assert judge(outcome(Ending.LEFT, said("ax", None)), said("abc"), []).verdict is Verdict.WRONG


@pytest.mark.parametrize("victim", [Victim.ENGINE, Victim.STANDBY, Victim.MONITOR])
def test_no_fault_of_an_engine_or_the_monitor_excuses_a_failure(victim: Victim) -> None:
    failed = judge(outcome(Ending.FAILED), None, [fault(victim, Action.KILL)])
    assert (failed.verdict, failed.faults) == (Verdict.FAILED, (f"kill {victim}",))


@pytest.mark.parametrize(("at_s", "verdict"), [(7.0, Verdict.FAILED), (9.0, Verdict.EXCUSED), (15.0, Verdict.EXCUSED), (21.0, Verdict.FAILED)])
def test_a_killed_worker_excuses_what_was_open_then(at_s: float, verdict: Verdict) -> None:
    assert judge(outcome(Ending.BROKEN), None, [fault(Victim.API, Action.KILL, at_s)]).verdict is verdict


def test_nothing_excuses_a_hang_or_another_shape() -> None:
    kill = [fault(Victim.DAEMON, Action.KILL)]
    assert judge(outcome(Ending.HUNG), None, kill).verdict is Verdict.HUNG
    assert judge(outcome(Ending.SHAPELESS), None, kill).verdict is Verdict.WRONG


def test_recovery_is_the_pause_that_a_fault_leaves_in_streams_that_flowed() -> None:
    flowing = outcome(Ending.ANSWERED, times_s=[14.8, 14.9, 15.02, 15.9, 16.0])
    earlier = outcome(Ending.ANSWERED, times_s=[11.0, 12.0])
    kill, other = fault(Victim.ENGINE, Action.KILL), fault(Victim.MONITOR, Action.KILL)
    times = recovery_times_s([kill, other], [flowing, earlier])
    assert times == {"kill engine": [pytest.approx(0.9)]}
