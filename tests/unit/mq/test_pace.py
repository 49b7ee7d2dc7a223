"""Tests of aphrodited.mq.pace."""

from __future__ import annotations

from aphrodited.interfaces import StepPlan
from aphrodited.mq.pace import PATIENCE, StepPace


def test_the_least_holds_for_small_steps() -> None:
    assert StepPace(30.0).allowance_s(StepPlan(1, 1)) == 30.0


def test_a_slow_engine_is_given_time_for_a_long_prompt() -> None:
    pace = StepPace(2.0)
    pace.observe(StepPlan(100, 1), elapsed_s=10.0)
    assert pace.allowance_s(StepPlan(600, 1)) == PATIENCE * 60.0


def test_a_slow_moment_is_forgiven_in_time() -> None:
    pace = StepPace(2.0)
    pace.observe(StepPlan(1, 1), elapsed_s=60.0)
    for _ in range(1000):
        pace.observe(StepPlan(1, 1), elapsed_s=0.01)
    assert pace.allowance_s(StepPlan(1, 1)) == 2.0


def test_an_empty_plan_teaches_nothing_wrong() -> None:
    pace = StepPace(2.0)
    pace.observe(StepPlan(0, 0), elapsed_s=0.0)
    assert pace.allowance_s(StepPlan(0, 0)) == 2.0
