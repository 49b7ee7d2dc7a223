"""Which of a model's engines may load now: one alone while none serves, the others once it has settled.

    what the model's other engines do                this one
    none runs: stopped, parked or waiting itself     loads at once
    one loads, or waits in standby to be promoted    waits
    one serves, for less than SETTLED_S by our clock waits: resumed requests need the cores now
    one has served for SETTLED_S                     loads; the worker sees that it is a spare and does it gently

Several launchers may ask at once, so looking and beginning are one act, under a lock that ends with the execution
of the worker. Reads what launchers and workers say of themselves; knows no policy of restarts.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence

from aphrodited.page import Phase, read_page
from aphrodited.paths import DaemonPaths, ModelPaths
from aphrodited.procfs import is_same_process, process_start_ticks
from aphrodited.supervision.program_state import LaunchState, read_program_state

SETTLED_S = 5.0
_SERVING = (Phase.READY, Phase.STEPPING)
_LEAVING = (Phase.DRAINING, Phase.FAILED)
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class LaunchQueue:
    """One launcher's view of the model's other engines, by program name."""

    def __init__(
        self,
        paths: DaemonPaths,
        model: ModelPaths,
        peers: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._peers = peers
        self._clock = clock
        self._serving: str | None = None
        self._serving_since_s = 0.0
        model.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = os.open(model.folder / "launch", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def reason_to_wait(self) -> str:
        """Why this engine may not load yet; empty if it may, and then no other one may until this process executes."""
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        reason = self._reason()
        if reason:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
        return reason

    def _reason(self) -> str:
        phases = {peer: phase for peer in self._peers if (phase := self._phase_of(peer)) is not None}
        serving = next((peer for peer, phase in phases.items() if phase in _SERVING), None)
        if serving != self._serving:
            self._serving, self._serving_since_s = serving, self._clock()
        if serving is None:
            ahead = next((peer for peer, phase in phases.items() if phase not in _LEAVING), None)
            return f"{ahead} is about to serve" if ahead else ""
        has_settled = self._clock() - self._serving_since_s >= SETTLED_S
        return "" if has_settled else f"{serving} has just begun to serve"

    def _phase_of(self, peer: str) -> Phase | None:
        """What the peer's worker is at; None while there is none, or only its launcher, which waits."""
        launch = read_program_state(self._paths.program_state(peer))
        if launch is None or launch.state is not LaunchState.RUNNING:
            return None
        start_ticks = process_start_ticks(launch.pid)
        if start_ticks is None or start_ticks / _CLOCK_TICKS > launch.since_s:  # gone; maybe the number is another's
            return None
        if not is_same_process(launch.pid, start_ticks):
            return None
        page = read_page(self._paths.page(peer))
        return page.phase if page is not None and page.pid == launch.pid else Phase.STARTING
