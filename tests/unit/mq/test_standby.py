"""Tests of aphrodited.mq.standby: one process serves, the others wait, and nobody else ever gets in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from aphrodited.mq.endpoints import Generation, is_served, promote, try_lock
from aphrodited.mq.standby import wait_for_promotion
from aphrodited.paths import ModelPaths
from tests.support.daemons import wait_until


class Waiter:
    """A standby in a thread of its own."""

    def __init__(self, paths: ModelPaths) -> None:
        self.is_wanted = True
        self.num_ticks = 0
        self.promoted: Generation | None = None
        self._paths = paths
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        self.promoted = wait_for_promotion(self._paths, is_wanted=lambda: self.is_wanted, on_tick=self._tick)

    def _tick(self) -> None:
        self.num_ticks += 1

    def end(self) -> None:
        """Let it in, if nobody did, and take everything back."""
        self.is_wanted = True
        self._thread.join(10)
        assert self.promoted is not None
        self.promoted.close()


@contextmanager
def active_engine(paths: ModelPaths) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves the model until it is killed."""
    code = (
        "import time; from pathlib import Path; from aphrodited.mq.endpoints import promote\n"
        f"from aphrodited.paths import ModelPaths; promote(ModelPaths(Path({str(paths.folder)!r}))).announce()\n"
        "print(flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_without_an_active_engine_nothing_is_waited_for(model_paths: ModelPaths) -> None:
    ticks: list[int] = []
    promoted = wait_for_promotion(model_paths, is_wanted=lambda: True, on_tick=lambda: ticks.append(1))
    with closing(promoted) as generation:
        assert generation.number == 1
    assert ticks == []


def test_a_standby_follows_an_engine_that_is_killed(model_paths: ModelPaths) -> None:
    with active_engine(model_paths) as engine:
        waiter = Waiter(model_paths)
        wait_until(lambda: waiter.num_ticks >= 2, what="ticks while it waits")
        assert waiter.promoted is None
        engine.send_signal(signal.SIGKILL)
        wait_until(lambda: waiter.promoted, what="the promotion")
        assert waiter.promoted is not None
        assert waiter.promoted.number == 2
        assert is_served(model_paths)
        waiter.end()


def test_a_living_engine_hands_over_without_a_tick_in_between(
    model_paths: ModelPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aphrodited.mq.standby.TICK_S", 3600.0)
    leaving = promote(model_paths)
    waiter = Waiter(model_paths)
    wait_until(lambda: waiter.num_ticks, what="a tick")
    assert waiter.promoted is None
    leaving.hand_over()
    wait_until(lambda: waiter.promoted, what="the promotion")
    assert leaving.folder.is_dir()
    leaving.close()
    waiter.end()


def test_a_forked_child_does_not_keep_the_lock_of_an_engine_that_hands_over(model_paths: ModelPaths) -> None:
    leaving = promote(model_paths)
    inherited = os.dup(leaving._lock_fd or 0)
    leaving.hand_over()
    promote(model_paths, wait_s=0).close()
    leaving.close()
    os.close(inherited)


def test_of_several_standbys_one_is_promoted_at_a_time(model_paths: ModelPaths) -> None:
    with active_engine(model_paths) as engine:
        waiters = [Waiter(model_paths) for _ in range(4)]
        wait_until(lambda: all(waiter.num_ticks for waiter in waiters), what="ticks")
        engine.send_signal(signal.SIGKILL)
        numbers = []
        while waiters:
            wait_until(lambda: [w for w in waiters if w.promoted], what="a promotion")
            (winner,) = [waiter for waiter in waiters if waiter.promoted]
            assert winner.promoted is not None
            numbers.append(winner.promoted.number)
            winner.end()
            waiters.remove(winner)
    assert numbers == [2, 3, 4, 5]


def test_a_stopped_model_is_not_promoted_and_its_lock_is_not_kept(
    model_paths: ModelPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aphrodited.mq.standby.TICK_S", 0.05)
    with active_engine(model_paths) as engine:
        waiter = Waiter(model_paths)
        waiter.is_wanted = False
        engine.send_signal(signal.SIGKILL)
        engine.wait()
        num_ticks = waiter.num_ticks
        wait_until(lambda: waiter.num_ticks > num_ticks + 3, what="ticks without a promotion")
        assert waiter.promoted is None
        assert not is_served(model_paths)
        promote(model_paths, wait_s=5).close()
        waiter.is_wanted = True
        wait_until(lambda: waiter.promoted, what="the promotion once it is wanted again")
        waiter.end()


def test_no_file_descriptor_is_left(model_paths: ModelPaths) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with active_engine(model_paths) as engine:
            waiter = Waiter(model_paths)
            wait_until(lambda waiter=waiter: waiter.num_ticks, what="a tick")
            engine.send_signal(signal.SIGKILL)
            wait_until(lambda waiter=waiter: waiter.promoted, what="the promotion")
            waiter.end()
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_interrupted_wait_leaves_no_descriptor(model_paths: ModelPaths) -> None:
    def stop() -> None:
        raise InterruptedError

    with closing(promote(model_paths)) as active:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(InterruptedError):
            wait_for_promotion(model_paths, is_wanted=lambda: True, on_tick=stop)
        assert len(os.listdir("/proc/self/fd")) == before
        assert not try_lock_of(model_paths)
        assert active.number == 1


def try_lock_of(paths: ModelPaths) -> bool:
    fd = os.open(paths.lock, os.O_RDWR)
    try:
        return try_lock(fd)
    finally:
        os.close(fd)
