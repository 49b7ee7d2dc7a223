"""Tests of aphrodited.mq.stepper."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from aphrodited.interfaces import EngineStats, ModelFacts, StepPlan
from aphrodited.mq.stepper import Stepper
from aphrodited.outputs import TokenOutput
from aphrodited.request import EngineRequest
from tests.support.scripted_engine import FACTS

BOTH = pytest.mark.parametrize("overlapped", [False, True])


class CountingBackend:
    """Gives one output a step, `num_steps` times; `during` runs within each."""

    facts: ModelFacts = FACTS
    on_plan: Callable[[StepPlan], None] | None = None
    on_progress: Callable[[], None] | None = None

    def __init__(self, num_steps: int) -> None:
        self.left = num_steps
        self.during: Callable[[], object] = lambda: None
        self.aborted: list[int] = []
        self.is_stepping = False

    def add_request(self, key: int, request: EngineRequest) -> None: ...

    def abort_request(self, key: int) -> bool:
        assert not self.is_stepping
        self.aborted.append(key)
        return True

    def step(self) -> list[TokenOutput]:
        self.is_stepping = True
        self.during()
        self.is_stepping = False
        self.left -= 1
        return [TokenOutput(1, [self.left])]

    def has_unfinished_requests(self) -> bool:
        return self.left > 0

    def stats(self) -> EngineStats:
        return EngineStats()

    def close(self) -> None: ...


class Rig:
    def __init__(self, overlapped: bool, num_steps: int = 3) -> None:
        self.backend = CountingBackend(num_steps)
        self.sent: list[int] = []
        self.senders: set[int] = set()
        self.has_sent = threading.Event()
        self.while_sending: Callable[[], object] = lambda: None
        self.stepper = Stepper(self.backend, self.send, overlapped=overlapped)

    def send(self, outputs: list[TokenOutput]) -> None:
        self.while_sending()
        self.senders.add(threading.get_ident())
        self.sent += [output.token_ids[0] for output in outputs]
        self.has_sent.set()


@pytest.fixture
def make() -> Iterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(overlapped: bool, num_steps: int = 3) -> Rig:
        rigs.append(Rig(overlapped, num_steps))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.stepper.close()


@BOTH
def test_every_output_is_sent_in_order(make: Callable[..., Rig], overlapped: bool) -> None:
    rig = make(overlapped)
    for _ in range(3):
        rig.stepper.step()
    assert rig.sent == [2, 1, 0]


def test_outputs_leave_while_the_next_step_computes(make: Callable[..., Rig]) -> None:
    rig = make(True)
    rig.stepper.step()
    assert rig.sent == []
    rig.backend.during = lambda: rig.has_sent.wait(10)  # the step ends only when the outputs have left
    rig.stepper.step()
    assert rig.sent == [2]
    assert threading.get_ident() not in rig.senders


def test_what_no_step_follows_is_sent_at_once(make: Callable[..., Rig]) -> None:
    rig = make(True, num_steps=1)
    rig.stepper.step()
    assert rig.sent == [0]


def test_flush_sends_what_waits(make: Callable[..., Rig]) -> None:
    rig = make(True)
    rig.stepper.step()
    rig.stepper.flush()
    rig.stepper.flush()
    assert rig.sent == [2]


def test_an_abort_from_the_sender_waits_for_the_step(make: Callable[..., Rig]) -> None:
    """The backend is called by one thread: a client lost while sending is aborted after the step."""
    rig = make(True)
    rig.while_sending = lambda: rig.stepper.abort(7)
    rig.stepper.step()
    rig.backend.during = lambda: rig.has_sent.wait(10)
    rig.stepper.step()
    assert rig.backend.aborted == [7]
    rig.stepper.abort(8)
    assert rig.backend.aborted == [7, 8]


@BOTH
def test_an_error_of_the_step_is_raised_after_what_came_before_was_sent(
    make: Callable[..., Rig], overlapped: bool
) -> None:
    rig = make(overlapped)
    rig.stepper.step()

    def fail() -> None:
        raise RuntimeError("this step failed")

    rig.backend.during = fail
    with pytest.raises(RuntimeError, match="this step failed"):
        rig.stepper.step()
    assert rig.sent == [2]


@BOTH
def test_an_error_of_sending_is_raised(overlapped: bool) -> None:
    def send(outputs: list[TokenOutput]) -> None:
        raise OSError("no way out")

    stepper = Stepper(CountingBackend(1), send, overlapped=overlapped)
    with pytest.raises(OSError, match="no way out"):
        stepper.step()
    stepper.close()


def test_an_error_of_the_sender_is_raised_by_the_step_that_it_ran_in(make: Callable[..., Rig]) -> None:
    rig = make(True)

    def fail() -> None:
        raise OSError("no way out")

    rig.while_sending = fail
    rig.stepper.step()
    with pytest.raises(OSError, match="no way out"):
        rig.stepper.step()
