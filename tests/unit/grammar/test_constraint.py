"""A constraint over positions that are plain words: what workers do, a test does itself."""

from concurrent.futures import Future

import numpy as np
import pytest

from aphrodited.errors import RequestError
from aphrodited.grammar.constraint import TASK_LIMIT_S, Constraint, ConstraintState
from aphrodited.sampling_params import Grammar, GrammarKind

GRAMMAR = Grammar(GrammarKind.REGEX, "ab")


class Word:
    """What is left of a word of token ids."""

    def __init__(self, *rest):
        self.rest = rest
        self.allowed = np.array([1 << rest[0]], dtype=np.uint8) if rest else None

    def after(self, token_ids):
        if list(self.rest[: len(token_ids)]) != list(token_ids):
            raise RequestError("these tokens do not fit")
        return Word(*self.rest[len(token_ids) :])


class Desk:
    """Where tasks lie until `work` is called."""

    def __init__(self):
        self.now_s = 0.0
        self.tasks = []

    def submit(self, task, future):
        self.tasks.append((task, future))

    def work(self):
        task, future = self.tasks.pop(0)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(task())
        except RequestError as error:
            future.set_exception(error)

    def constraint(self, begin):
        return Constraint(GRAMMAR, begin, submit_first=self.submit, submit=self.submit, clock=lambda: self.now_s)


@pytest.fixture
def desk():
    return Desk()


def test_it_is_pending_until_a_worker_was_there_and_then_goes_on_token_by_token(desk):
    constraint = desk.constraint(lambda: Word(3, 5))
    assert constraint.state() is ConstraintState.PENDING
    assert constraint.allowed(0) is None
    desk.work()
    assert constraint.state() is ConstraintState.OPEN
    assert constraint.allowed(0).tolist() == [1 << 3]
    constraint.advance(3)
    assert constraint.state() is ConstraintState.PENDING
    desk.work()
    constraint.advance(5)
    desk.work()
    assert constraint.state() is ConstraintState.COMPLETE
    assert constraint.allowed(0) is None


def test_what_a_worker_raised_is_raised_by_the_state_alone(desk):
    constraint = desk.constraint(lambda: Word(3, 5).after([4]))
    desk.work()
    assert constraint.allowed(0) is None
    with pytest.raises(RequestError, match="do not fit"):
        constraint.state()


def test_it_fails_when_no_worker_comes_in_time(desk):
    constraint = desk.constraint(lambda: Word(3))
    desk.now_s = TASK_LIMIT_S
    assert constraint.state() is ConstraintState.PENDING
    desk.now_s += 0.1
    with pytest.raises(RequestError) as caught:
        constraint.state()
    assert caught.value.param == "structured_outputs"


def test_each_token_has_its_own_time(desk):
    constraint = desk.constraint(lambda: Word(3, 5))
    desk.work()
    desk.now_s = 10 * TASK_LIMIT_S
    assert constraint.state() is ConstraintState.OPEN
    constraint.advance(3)
    assert constraint.state() is ConstraintState.PENDING


def test_a_cancelled_task_is_never_begun(desk):
    done = []
    constraint = desk.constraint(lambda: done.append(1))
    constraint.cancel()
    desk.work()
    assert done == []


def test_cancelling_what_has_begun_is_harmless(desk):
    constraint = desk.constraint(lambda: Word(3))
    _, future = desk.tasks[0]
    assert isinstance(future, Future)
    future.set_running_or_notify_cancel()
    constraint.cancel()
    assert constraint.state() is ConstraintState.PENDING
