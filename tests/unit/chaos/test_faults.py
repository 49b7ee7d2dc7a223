"""Faults are drawn from the seed and reach whom they are meant for."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from aphrodited.chaos.faults import KINDS, MAX_PAUSE_FACTOR, Action, FaultMaker, pauses_s
from aphrodited.chaos.targets import Target
from aphrodited.page import Page, Phase
from aphrodited.procfs import process_start_ticks


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def target_of(process: subprocess.Popen[bytes], program: str = "monitor") -> Target:
    start_ticks = process_start_ticks(process.pid)
    assert start_ticks is not None
    return Target(process.pid, start_ticks, program, None)


def test_pauses_are_as_long_as_asked_for_on_average_and_never_very_long() -> None:
    pauses = list(islice(pauses_s(1, 5.0), 2000))
    assert 4.5 < sum(pauses) / len(pauses) < 5.5
    assert max(pauses) <= 5.0 * MAX_PAUSE_FACTOR
    assert pauses == list(islice(pauses_s(1, 5.0), 2000))


async def test_a_fault_hits_the_only_one_who_is_there(sleeper: subprocess.Popen[bytes]) -> None:
    maker = FaultMaker(Path("unused"), 1)
    fault = None
    while fault is None or fault.kind.name not in ("kill monitor", "stop monitor"):
        if fault is not None:  # a restart is asked of a daemon, and there is none
            await maker.finish()
        fault = await maker.strike([target_of(sleeper)])
    assert fault.target == "monitor (starting)"
    await maker.finish()


@pytest.mark.parametrize(("phase", "breaks"), [(Phase.READY, False), (Phase.DRAINING, True)])
def test_a_worker_that_is_asked_to_leave_breaks_connections_only_if_it_was_leaving_already(phase: Phase, breaks: bool) -> None:
    page = Page(1, 2, 0, phase, has_work=False, num_ticks=0, num_steps=0, num_finished=0, allowance_s=0.0, updated_at_s=0.0)
    worker = Target(1, 2, "api-0", page)
    (kind,) = [kind for kind in KINDS if kind.action is Action.TERMINATE and kind.may_hit(worker)]
    assert kind.breaks_connections is breaks


async def test_nobody_is_hit_when_nobody_is_there() -> None:
    assert await FaultMaker(Path("unused"), 1).strike([]) is None


def test_another_process_of_the_same_number_is_spared(sleeper: subprocess.Popen[bytes]) -> None:
    right = target_of(sleeper)
    assert not Target(right.pid, right.start_ticks + 1, "monitor", None).send(signal.SIGKILL)
    assert sleeper.poll() is None
    assert right.send(signal.SIGKILL)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert not right.send(signal.SIGKILL)
