"""Tells how the daemon is doing: the service manager always, people when something changes.

Knows what is worth saying, and neither how it came to be nor what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aphrodited.config.schema import Config
from aphrodited.supervision.listening import url_of
from aphrodited.supervision.programs import Role, programs, stop_timeout_s
from aphrodited.supervision.readiness import Condition, Readiness, Sight
from aphrodited.supervision.sd_notify import ServiceManager

EXTENSION_S = 30.0
"""How much longer a start may take, from each sign of progress on."""

EXTENSION_PERIOD_S = 5.0


class Herald:
    """One daemon's voice. has_told_ready: READY was said, which happens once."""

    def __init__(
        self, config: Config, manager: ServiceManager, announce: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._config = config
        self._manager = manager
        self._announce = announce
        self._clock = clock
        self._programs = {program.name: program for program in programs(config)}
        self._conditions: dict[str, Condition] = {}
        self._progress: dict[str, tuple[float, int]] = {}
        self._extended_at_s = float("-inf")
        self.has_told_ready = False

    def take(self, config: Config) -> None:
        """Speak of this configuration from now on. It has the same programs."""
        self._config = config

    def tell(self, readiness: Readiness, sights: Mapping[str, Sight]) -> None:
        """Call at every look; says only what is new."""
        before, self._conditions = self._conditions, readiness.conditions
        for name, condition in readiness.conditions.items():
            if condition is not before.get(name):
                self._tell_condition(name, condition, sights.get(name))
        if readiness.is_ready and not self.has_told_ready:
            self.has_told_ready = True
            self._manager.ready(readiness.text)
            self._announce(self._invitation(readiness))
            return
        self._manager.status(readiness.text)
        if not self.has_told_ready:
            self._extend_start(readiness, sights)

    def tell_stopping(self) -> None:
        drain_s = self._config.api.drain_timeout_s
        self._announce(f"stopping: running requests get {drain_s:g} s; SIGTERM or Ctrl-C again stops at once")
        self._manager.stopping("stopping: API workers drain, then the engines end")
        self._manager.extend_timeout(stop_timeout_s(self._config) + EXTENSION_S)

    def _tell_condition(self, name: str, condition: Condition, sight: Sight | None) -> None:
        title = self._programs[name].title
        launch = sight.launch if sight else None
        if condition in (Condition.PARKED, Condition.WAITING) and launch is not None:
            verb = "is parked" if condition is Condition.PARKED else "starts again later"
            self._announce(f"{title} {verb}: {launch.reason}")
        elif condition is Condition.READY and self.has_told_ready and sight is not None:
            self._announce(f"{title} is ready (pid {sight.pid})")

    def _extend_start(self, readiness: Readiness, sights: Mapping[str, Sight]) -> None:
        """As long as a page moves, or somebody waits for a turn that will come."""
        before = self._progress
        self._progress = {name: (s.page.progress, s.page.num_ticks) for name, s in sights.items() if s.page}
        goes_on = self._progress != before or Condition.WAITING in readiness.conditions.values()
        if goes_on and self._clock() - self._extended_at_s >= EXTENSION_PERIOD_S:
            self._extended_at_s = self._clock()
            self._manager.extend_timeout(EXTENSION_S)

    def _invitation(self, readiness: Readiness) -> str:
        api = self._config.api
        url = url_of(api.host, api.port)
        serving = [
            program.model
            for program in self._programs.values()
            if program.role is Role.ENGINE and readiness.conditions[program.name] is Condition.READY
        ]
        if not serving:
            return f"listening on {url}, but no model serves: {readiness.text}"
        key = " -H 'Authorization: Bearer YOUR_KEY'" if api.keys_file else ""
        return (
            f"ready on {url}: {readiness.text}. Try:\n"
            f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key}"
            f' -d \'{{"model": "{serving[0]}", "messages": [{{"role": "user", "content": "Hello!"}}]}}\''
        )
