import pytest

from aphrodited.page import Page, Phase
from aphrodited.supervision.standstill import START_LIMIT_S, StandstillWatch


class FakeClock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def watch(clock):
    return StandstillWatch(clock)


def page(num_ticks, allowance_s=0.0):
    return Page(7, 0, 0, Phase.READY, False, num_ticks, 0, 0, allowance_s, 0.0)


def looks(watch, clock, seconds, make_page, pid=7):
    """One look a second; the first verdict, if any."""
    for _ in range(seconds):
        clock.now_s += 1
        watch.begin_round()
        verdict = watch.look("monitor", pid, make_page(), 10.0)
        if verdict:
            return verdict
    return None


def test_a_page_that_moves_is_fine(watch, clock):
    ticks = iter(range(100))
    assert looks(watch, clock, 60, lambda: page(next(ticks))) is None


def test_a_page_that_stands_still_is_told_after_the_limit(watch, clock):
    assert looks(watch, clock, 11, lambda: page(1)) is None
    assert looks(watch, clock, 1, lambda: page(1)) == "its event loop stood still for 11 s"


def test_a_page_may_allow_itself_more(watch, clock):
    assert looks(watch, clock, 31, lambda: page(1, allowance_s=30.0)) is None
    assert looks(watch, clock, 1, lambda: page(1, allowance_s=30.0))


def test_a_process_without_a_page_has_longer(watch, clock):
    verdict = looks(watch, clock, int(START_LIMIT_S) + 5, lambda: None)
    assert verdict == f"wrote no page in {START_LIMIT_S + 1:.0f} s"


def test_a_stopped_process_without_a_page_has_no_longer_than_others(watch, clock):
    for _ in range(11):
        clock.now_s += 1
        watch.begin_round()
        assert watch.look("engine", 7, None, 10.0, is_stopped=True) is None
    clock.now_s += 1
    watch.begin_round()
    assert watch.look("engine", 7, None, 10.0, is_stopped=True) == "was stopped 11 s ago, before it did anything"


def test_another_process_begins_anew(watch, clock):
    assert looks(watch, clock, 9, lambda: page(1)) is None
    assert looks(watch, clock, 9, lambda: page(1), pid=8) is None


def test_whoever_overslept_gives_no_verdict(watch, clock):
    assert looks(watch, clock, 9, lambda: page(1)) is None
    clock.now_s += 60
    assert looks(watch, clock, 9, lambda: page(1)) is None


def test_a_program_can_be_forgotten(watch, clock):
    looks(watch, clock, 9, lambda: page(1))
    watch.forget("monitor")
    assert looks(watch, clock, 9, lambda: page(1)) is None
