"""What follows from a process's size, on a clock that is a number."""

from itertools import pairwise

import pytest

from aphrodited.health.memory import OVER_S, PERIOD_S, SPACING_S, WAIT_S, MemoryPolicy, MemorySight, describe
from aphrodited.health.memory import MemoryAction as Action

MIB = 1024**2


def sight(mib, limit=100, pid=1, num_finished=1, is_quiet=False):
    return MemorySight(pid, mib * MIB, None if limit is None else limit * MIB, num_finished, is_quiet)


def told(policy, name="p", at_s=0.0, **fields):
    """Above the limit from at_s on; returns when that was told."""
    assert policy.look(name, sight(101, **fields), at_s) is None
    assert policy.look(name, sight(101, **fields), at_s + OVER_S) is Action.EXCEEDED
    return at_s + OVER_S


@pytest.mark.parametrize("limit", [None, 100, 200])
def test_nothing_follows_within_the_limit_or_without_one(limit):
    policy = MemoryPolicy()
    assert [policy.look("p", sight(100, limit), float(at_s)) for at_s in range(1000)] == [None] * 1000


def test_a_peak_is_no_verdict():
    policy = MemoryPolicy()
    for at_s in range(100):
        assert policy.look("p", sight(500), float(at_s)) is None
        assert policy.look("p", sight(50), at_s + OVER_S / 2) is None


def test_it_is_told_once_and_restarted_at_the_next_quiet_moment():
    policy = MemoryPolicy()
    at_s = told(policy)
    assert policy.look("p", sight(101), at_s + 10) is None
    assert policy.look("p", sight(101, is_quiet=True), at_s + 11) is Action.RESTART
    assert policy.look("p", sight(101, is_quiet=True), at_s + 12) is None


def test_without_a_quiet_moment_it_is_restarted_all_the_same_in_the_end():
    policy = MemoryPolicy()
    at_s = told(policy)
    assert policy.look("p", sight(101), at_s + WAIT_S - 1) is None
    assert policy.look("p", sight(101), at_s + WAIT_S) is Action.RESTART


def test_one_that_shrinks_again_is_left_alone():
    policy = MemoryPolicy()
    at_s = told(policy)
    assert policy.look("p", sight(99), at_s + 1) is Action.CLEARED
    assert policy.look("p", sight(99, is_quiet=True), at_s + WAIT_S + 1) is None


def test_one_program_is_restarted_once_in_ten_minutes_at_most():
    policy, restarts = MemoryPolicy(), []
    for at_s in range(4000):
        if policy.look("p", sight(101, pid=len(restarts), is_quiet=True), float(at_s)) is Action.RESTART:
            restarts.append(at_s)
    assert len(restarts) == 7
    assert min(after - before for before, after in pairwise(restarts)) >= PERIOD_S


def test_what_an_earlier_monitor_restarted_counts():
    policy = MemoryPolicy({"p": -60.0})
    at_s = told(policy, is_quiet=True)
    assert policy.look("p", sight(101, is_quiet=True), PERIOD_S - 61) is None
    assert policy.look("p", sight(101, is_quiet=True), max(at_s, PERIOD_S - 60)) is Action.RESTART


def test_two_programs_are_not_restarted_at_the_same_time():
    policy = MemoryPolicy()
    at_s = told(policy, "p"), told(policy, "q")
    assert policy.look("p", sight(101, is_quiet=True), at_s[0] + 1) is Action.RESTART
    assert policy.look("q", sight(101, is_quiet=True), at_s[0] + 2) is None
    assert policy.look("q", sight(101, is_quiet=True), at_s[0] + 1 + SPACING_S) is Action.RESTART


def test_one_that_is_too_large_before_it_has_done_anything_is_told_and_never_restarted():
    policy = MemoryPolicy()
    policy.look("p", sight(101, num_finished=0), 0.0)
    assert policy.look("p", sight(101, num_finished=0), OVER_S) is Action.USELESS
    for at_s in range(10, 2000):
        assert policy.look("p", sight(101, num_finished=at_s, is_quiet=True), float(at_s)) is None
    assert policy.look("p", sight(101, limit=200), 2000.0) is Action.CLEARED


def test_a_lower_limit_that_is_reloaded_is_judged_anew():
    policy = MemoryPolicy()
    told(policy)
    assert policy.look("p", sight(101, limit=50, is_quiet=True), 10.0) is None
    assert policy.look("p", sight(101, limit=50, is_quiet=True), 10.0 + OVER_S) is Action.EXCEEDED


def test_the_next_life_is_judged_by_itself():
    policy = MemoryPolicy()
    at_s = told(policy, pid=1)
    assert policy.look("p", sight(101, pid=2, is_quiet=True), at_s + 1) is None


def test_sentences_say_how_much_and_what_follows():
    assert describe(Action.EXCEEDED, sight(101)) == "101MiB resident, memory_soft_limit is 100MiB; it is replaced at a quiet moment"
    assert "raise the limit" in describe(Action.USELESS, sight(101))
