"""Whether an engine of a model is to be expected, from what their processes and launchers left in files.

Read only when somebody asks, and at most twice a second. Knows no socket: whether the engine takes requests is
known to its client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from aphrodited.api.served_model import Availability
from aphrodited.health.probes import Look, look_at
from aphrodited.health.states import LAUNCH_STATES, PHASE_STATES, State, nearest_to_serving
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.desired import Desired
from aphrodited.supervision.ledger import boottime_s
from aphrodited.supervision.program_state import LaunchState, read_program_state

MAX_AGE_S = 0.5
RESPAWN_S = 3.0
"""A dead engine is started again within milliseconds; one that is still missing after this was stopped."""


class EngineAvailability:
    """Call it for the Availability of a model now, by the names of its engine programs: that of the best of them.

    desired: what the operator wants of the model.
    """

    def __init__(
        self,
        programs: Sequence[str],
        paths: DaemonPaths,
        clock: Callable[[], float] = time.monotonic,
        boottime: Callable[[], float] = boottime_s,
        *,
        desired: Callable[[], Desired] = lambda: Desired.SERVED,
    ) -> None:
        self._programs = programs
        self._paths = paths
        self._desired = desired
        self._clock = clock
        self._boottime = boottime
        self._read_at_s: float | None = None
        self._missing: dict[str, tuple[int | None, float]] = {}  # pid of the last life, since when it is seen missing
        self._known = Availability("starting", 0.0)

    def __call__(self) -> Availability:
        if self._desired() is Desired.UNLOADED:
            return Availability("unloaded", None)
        now_s = self._clock()
        if self._read_at_s is None or now_s - self._read_at_s >= MAX_AGE_S:
            self._read_at_s = now_s
            engines = [self._judge(program, look_at(program, self._paths), now_s) for program in self._programs]
            self._known = nearest_to_serving(engines, lambda engine: State(engine.state))
        return self._known

    def _judge(self, program: str, look: Look, now_s: float) -> Availability:
        if look.pid is None:
            if now_s - self._missing_since_s(program, now_s) < RESPAWN_S:
                return Availability("starting", 0.0)
            return Availability("stopped", None, "its engine process was stopped")
        self._missing.pop(program, None)
        launch = look.launch
        if launch is not None and launch.state in (LaunchState.BACKOFF, LaunchState.PARKED):
            due_in_s = None
            if launch.next_try_at_s is not None:
                due_in_s = max(0.0, launch.next_try_at_s - self._boottime())
            return Availability(LAUNCH_STATES[launch.state] or "starting", due_in_s, launch.reason)
        if look.page is None:
            return Availability("starting", 0.0)
        return Availability(PHASE_STATES[look.page.phase], 0.0, look.page.message)

    def _missing_since_s(self, program: str, now_s: float) -> float:
        """Since when the process is missing. Nobody may have asked while another life came and went: that begins anew."""
        launch = read_program_state(self._paths.program_state(program))
        last_pid = launch.pid if launch else None
        seen_pid, since_s = self._missing.get(program, (None, now_s))
        if seen_pid != last_pid:
            since_s = now_s
        self._missing[program] = last_pid, since_s
        return since_s
