"""What Supervisor lacks, added through its own extension point `[rpcinterface:aphrodited]`, in its own process.

    prompt                 its loop is woken by signals and state changes
    deaths                 raw wait status, last page and OOM traces go to the ledger; left-overs are killed
    FATAL                  started again after a minute instead of never
    service manager        READY, STATUS, WATCHDOG, EXTEND_TIMEOUT, STOPPING
    standstill             the monitor's loop page is judged here; those of API workers too, later than by the monitor
    signals                a second SIGTERM stops at once; SIGHUP reloads the configuration, in a process of its own
    reload                 what is read here of a replaced effective.json holds from the next look on; how long a
                           program may take to stop, from its next start on

An exception in here would end Supervisor and orphan everything: each way in is guarded, and what went wrong is
logged. Adds no method to the RPC interface. Knows no restart policy: that is the launcher's and the governor's.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervisor import events
from supervisor.datatypes import RestartUnconditionally
from supervisor.medusa import asyncore_25 as asyncore
from supervisor.states import ProcessStates, SupervisorStates

from aphrodited.config.schema import Config
from aphrodited.page import read_page
from aphrodited.paths import DaemonPaths
from aphrodited.procfs import process_state
from aphrodited.supervision.announce import Announcer
from aphrodited.supervision.desired import unloaded_models
from aphrodited.supervision.herald import Herald
from aphrodited.supervision.launcher import read_config
from aphrodited.supervision.obituary import Obituary
from aphrodited.supervision.program_state import LaunchState, ProgramState, read_program_state
from aphrodited.supervision.programs import Program, Role, programs
from aphrodited.supervision.readiness import Sight, judge
from aphrodited.supervision.reloader import LiveConfig, Reloader
from aphrodited.supervision.sd_notify import ServiceManager
from aphrodited.supervision.standstill import StandstillWatch
from aphrodited.supervision.wakeup import Wakeup

START_LOOK_S = 0.2  # between two looks at the pages until ready
LOOK_S = 1.0  # and afterwards
FATAL_PAUSE_S = 60.0
FAULT_PERIOD_S = 60.0
HOLD_S = 5.0
SECOND_STOP_AFTER_S = 0.5  # `timeout` and shells may deliver one SIGTERM twice
_ENDED = (events.ProcessStateExitedEvent, events.ProcessStateBackoffEvent, events.ProcessStateStoppedEvent)


def make_plugin(supervisord: Any, *, runtime_dir: str) -> object:
    """Called by Supervisor when it opens its control socket. The bare object it gets offers no RPC method."""
    paths, config = read_config(Path(runtime_dir))
    if paths is None or config is None:
        raise ValueError(f"{runtime_dir}/effective.json cannot be read")
    manager = ServiceManager.from_environment(os.environ)
    Plugin(supervisord, config, paths, manager, Announcer()).install()
    return object()


class Plugin:
    """One life of a supervisor. Everything runs in its main thread."""

    def __init__(
        self,
        supervisord: Any,
        config: Config,
        paths: DaemonPaths,
        manager: ServiceManager,
        announce: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._supervisord = supervisord
        self._config = config
        self._paths = paths
        self._manager = manager
        self._announce = announce
        self._clock = clock
        self._live = LiveConfig(paths)
        self._programs: dict[str, Program] = {program.name: program for program in programs(config)}
        self._wakeup = Wakeup(self._guard(self._on_loop))
        self._obituary = Obituary(paths, announce)
        self._standstill = StandstillWatch(clock)
        self._herald = Herald(config, manager, announce, clock)
        self._wait_statuses: dict[int, int] = {}
        self._due: dict[str, float] = {}  # when to do again what is done now and then
        self._held: dict[str, float] = {}  # programs that may not start before
        self._stop_signals_at_s: list[float] = []
        self._is_killing = False
        self._reloader = Reloader(paths, manager, announce)

    def install(self) -> None:
        asyncore.socket_map[self._wakeup.fileno()] = self._wakeup
        self._keep_wait_statuses()
        events.subscribe(events.ProcessStateEvent, self._guard(self._on_state))
        events.subscribe(events.SupervisorRunningEvent, self._guard(self._on_running))
        events.subscribe(events.SupervisorStoppingEvent, self._guard(self._on_stopping))

    # -- ways in ----------------------------------------------------------------------------------------------------

    def _guard(self, entry: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: Any) -> None:
            try:
                entry(*args)
            except Exception:  # noqa: BLE001 - whatever it is, Supervisor must live on
                self._supervisord.options.logger.critical(f"in {entry.__name__}: {traceback.format_exc()}")
                if self._is_due(f"fault in {entry.__name__}", self._clock(), FAULT_PERIOD_S):
                    self._announce(f"a fault in the daemon itself, in {entry.__name__}; see supervisor.log")

        return guarded

    def _keep_wait_statuses(self) -> None:
        """Supervisor reduces a wait status to an exit code; the signal is wanted too."""
        options = self._supervisord.options
        original = options.waitpid

        def waitpid() -> tuple[int | None, int | None]:
            pid, wait_status = original()
            if pid and wait_status is not None:
                self._reloader.ended(pid, wait_status)
                self._wait_statuses[pid] = wait_status
                if pid not in options.pidhistory:
                    del self._wait_statuses[pid]  # a grandchild that was left to us
            return pid, wait_status

        options.waitpid = waitpid

    def _on_running(self, _event: Any) -> None:
        """Supervisor has just set its own handlers: put ours before them."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGHUP, self._on_hup)
        self._forget_early_hups()
        signal.signal(signal.SIGALRM, lambda _number, _frame: None)  # wakes the loop through the pipe
        signal.setitimer(signal.ITIMER_REAL, START_LOOK_S, START_LOOK_S)
        self._manager.status("starting")
        self._wakeup.wake()

    def _on_stop_signal(self, _number: int, _frame: Any) -> None:
        now_s = self._clock()
        if not self._stop_signals_at_s or now_s - self._stop_signals_at_s[-1] >= SECOND_STOP_AFTER_S:
            self._stop_signals_at_s.append(now_s)

    def _on_hup(self, _number: int, _frame: Any) -> None:
        self._reloader.is_wanted = True

    def _forget_early_hups(self) -> None:
        """Supervisor's own handler may have seen one, and would restart every program for it."""
        received = self._supervisord.options.signal_receiver._signals_recvd
        received[:] = [number for number in received if number != signal.SIGHUP]

    def _on_stopping(self, _event: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._paths.stopping.touch()  # no process is stopped yet
        self._herald.tell_stopping()

    # -- processes --------------------------------------------------------------------------------------------------

    def _on_state(self, event: Any) -> None:
        process = event.process
        wake = True
        if isinstance(event, _ENDED) and process.pid:
            wake = self._on_death(process, isinstance(event, events.ProcessStateStoppedEvent))
        elif isinstance(event, events.ProcessStateStartingEvent):
            self._take_config()
            process.config.stopwaitsecs = self._programs[process.config.name].stop_timeout_s
        elif isinstance(event, events.ProcessStateFatalEvent) and self._is_running:
            self._hold(process.config.name, FATAL_PAUSE_S)
            self._announce(f"{process.config.name} could not be started: {process.spawnerr}; next try in a minute")
        self._due.pop("look", None)
        if wake:
            self._wakeup.wake()

    def _on_death(self, process: Any, stopped: bool) -> bool:
        """Record the death and clear up after it; whether the next life may begin at once."""
        pid, program = process.pid, self._programs[process.config.name]
        self._standstill.forget(program.name)
        _kill_group(pid)
        wait_status = self._wait_statuses.pop(pid, None)
        launch = self._launch_state(program.name, pid)
        is_written = self._obituary.write(program, pid, wait_status, stopped or not self._is_running, launch)
        if (launch is None or not is_written) and not stopped and self._is_running:
            # Its launcher cannot know of this death, or is itself what fails: nobody else would slow it down.
            self._hold(program.name, HOLD_S)
            return False
        return True

    def _hold(self, name: str, seconds: float) -> None:
        self._held[name] = self._clock() + seconds
        self._process(name).config.autorestart = False

    def _release_held(self, now_s: float) -> None:
        for name in [name for name, until_s in self._held.items() if until_s <= now_s]:
            del self._held[name]
            process = self._process(name)
            process.config.autorestart = RestartUnconditionally
            if process.get_state() == ProcessStates.FATAL and self._is_running:
                process.spawn()

    def _process(self, name: str) -> Any:
        for group in self._supervisord.process_groups.values():
            if name in group.processes:
                return group.processes[name]
        raise KeyError(name)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def _on_loop(self) -> None:
        now_s = self._clock()
        if self._stop_signals_at_s:
            self._stop()
        self._reloader.run_if_wanted(can_start=self._is_running)
        if self._manager.watchdog_s and self._is_due("watchdog", now_s, self._manager.watchdog_s / 3):
            self._manager.alive()
        if self._held:
            self._release_held(now_s)
        if self._is_due("ledger", now_s, HOLD_S):
            self._obituary.write_pending()
        if self._is_running and self._is_due("look", now_s, LOOK_S if self._herald.has_told_ready else START_LOOK_S):
            self._look()

    @property
    def _is_running(self) -> bool:
        return bool(self._supervisord.options.mood == SupervisorStates.RUNNING)

    def _is_due(self, what: str, now_s: float, period_s: float) -> bool:
        if now_s < self._due.get(what, 0.0):
            return False
        self._due[what] = now_s + period_s
        return True

    def _look(self) -> None:
        """At every page and launch state: for readiness, and for loops that stand still."""
        self._take_config()
        sights = self._sights()
        unloaded = unloaded_models(self._paths, {model.name for model in self._config.models})
        self._herald.tell(judge(list(self._programs.values()), sights, unloaded), sights)
        if self._herald.has_told_ready:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._judge_standstill(sights)

    def _take_config(self) -> None:
        """Go on by what a reload wrote, if it did."""
        config = self._live.read_if_changed()
        if config is not None:
            self._config = config
            self._programs = {program.name: program for program in programs(config)}
            self._herald.take(config)

    def _sights(self) -> dict[str, Sight]:
        sights = {}
        for name in self._programs:
            pid = self._process(name).pid
            if pid:
                page = read_page(self._paths.page(name))
                sights[name] = Sight(pid, page if page and page.pid == pid else None, self._launch_state(name, pid))
        return sights

    def _launch_state(self, name: str, pid: int) -> ProgramState | None:
        launch = read_program_state(self._paths.program_state(name))
        return launch if launch and launch.pid == pid else None

    def _stop(self) -> None:
        """Begin the orderly stop at the first signal, end it at the second."""
        if self._is_running:
            self._supervisord.options.mood = SupervisorStates.SHUTDOWN
            self._wakeup.wake()
        if len(self._stop_signals_at_s) == 1 or self._is_killing:
            return
        self._is_killing = True
        self._announce("stopping at once: every process is killed")
        for name in self._programs:
            pid = self._process(name).pid
            if pid:
                _kill_group(pid)

    # -- event loops that stand still -----------------------------------------------------------------------------------

    def _judge_standstill(self, sights: dict[str, Sight]) -> None:
        recovery = self._config.recovery
        limits = {
            Role.MONITOR: recovery.loop_hang_s,
            # The monitor is the judge of API workers; this is for the case that it cannot be.
            Role.API: recovery.loop_hang_s + 4 * recovery.ladder_step_s + 5,
        }
        self._standstill.begin_round()
        for name, sight in sights.items():
            program = self._programs[name]
            is_up = self._process(name).get_state() == ProcessStates.RUNNING
            is_launched = sight.launch is not None and sight.launch.state is LaunchState.RUNNING
            # A launcher that waits may do so for long, but not stopped; and without a page nobody else would know.
            is_stopped = sight.page is None and process_state(sight.pid) == "T"
            if not is_stopped and (program.role not in limits or not is_up or not is_launched):
                self._standstill.forget(name)
                continue
            limit_s = recovery.loop_hang_s if is_stopped else limits[program.role]
            reason = self._standstill.look(name, sight.pid, sight.page, limit_s, is_stopped=is_stopped)
            if reason is not None:
                self._obituary.write_verdict(program, sight.pid, reason)
                self._announce(f"{program.title} hangs: {reason}; it is killed")
                self._standstill.forget(name)
                _kill_group(sight.pid)


def _kill_group(pid: int) -> None:
    """SIGKILL to whatever is in the process group of a child, alive or dead."""
    if pid <= 1:
        raise ValueError(f"{pid} is no child's process group")
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
