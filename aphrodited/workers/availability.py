"""Whether a model's engine is to be expected, from what its process and its launcher left in files.

Read only when somebody asks, and at most twice a second. Knows no socket: whether the engine takes requests is
known to its client.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aphrodited.api.served_model import Availability
from aphrodited.health.probes import Look, look_at
from aphrodited.health.states import LAUNCH_STATES, PHASE_STATES
from aphrodited.paths import DaemonPaths, engine_program
from aphrodited.supervision.ledger import boottime_s
from aphrodited.supervision.program_state import LaunchState

MAX_AGE_S = 0.5
RESPAWN_S = 3.0
"""A dead engine is started again within milliseconds; one that is still missing after this was stopped."""


class EngineAvailability:
    """Call it for the Availability of a model's engine now."""

    def __init__(
        self,
        model_name: str,
        paths: DaemonPaths,
        clock: Callable[[], float] = time.monotonic,
        boottime: Callable[[], float] = boottime_s,
    ) -> None:
        self._program = engine_program(model_name, 0)
        self._paths = paths
        self._clock = clock
        self._boottime = boottime
        self._read_at_s: float | None = None
        self._missing_since_s: float | None = None
        self._known = Availability("starting", 0.0)

    def __call__(self) -> Availability:
        now_s = self._clock()
        if self._read_at_s is None or now_s - self._read_at_s >= MAX_AGE_S:
            self._read_at_s = now_s
            self._known = self._judge(look_at(self._program, self._paths), now_s)
        return self._known

    def _judge(self, look: Look, now_s: float) -> Availability:
        if look.pid is None:
            if self._missing_since_s is None:
                self._missing_since_s = now_s
            if now_s - self._missing_since_s < RESPAWN_S:
                return Availability("starting", 0.0)
            return Availability("stopped", None, "its engine process was stopped")
        self._missing_since_s = None
        launch = look.launch
        if launch is not None and launch.state in (LaunchState.BACKOFF, LaunchState.PARKED):
            due_in_s = None
            if launch.next_try_at_s is not None:
                due_in_s = max(0.0, launch.next_try_at_s - self._boottime())
            return Availability(LAUNCH_STATES[launch.state] or "starting", due_in_s, launch.reason)
        if look.page is None:
            return Availability("starting", 0.0)
        return Availability(PHASE_STATES[look.page.phase], 0.0, look.page.message)
