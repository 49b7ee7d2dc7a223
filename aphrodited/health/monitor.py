"""The monitor: looks at every process in rounds, carries verdicts out, and tells what it sees.

One round is synchronous, short and without a request to anybody: pages, launcher states and the ledger are read,
policy judges, signals are sent. Nothing of the restart path waits for the monitor. Knows no HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from aphrodited.config.schema import Config
from aphrodited.health.enforcement import ask_to_leave, carry_out
from aphrodited.health.events import LedgerTail
from aphrodited.health.memory_watch import MemoryWatch
from aphrodited.health.policy import ObservedClock, ProgressWatch
from aphrodited.health.probes import Look, look_at
from aphrodited.health.quarantine import Quarantine
from aphrodited.health.states import Action, State, model_state, nearest_to_serving, process_state
from aphrodited.log import get_logger
from aphrodited.metrics import MonitorMetrics
from aphrodited.mq.messages import EngineEvent, EventKind
from aphrodited.page import Page, Phase
from aphrodited.paths import DaemonPaths
from aphrodited.procfs import process_state as kernel_state
from aphrodited.supervision.desired import read_desired
from aphrodited.supervision.ledger import Death, Ledger, LedgerEntry, Ready, Verdict, boottime_s, stamp
from aphrodited.supervision.program_state import LaunchState, ProgramState
from aphrodited.supervision.programs import Program, Role, programs

log = get_logger()


class ModelView(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a model is, by pages and verdicts. next_try_in_s: of a parked or delayed engine, in seconds."""

    state: State
    reason: str = ""
    next_try_in_s: float | None = None


class Monitor:
    """Judges engines and API workers. `publish` must not block; `clock` gives monotonic seconds."""

    def __init__(
        self,
        config: Config,
        paths: DaemonPaths,
        publish: Callable[[EngineEvent], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        enforce: Callable[[Action, int, int], bool] = carry_out,
        dismiss: Callable[[int, int], bool] = ask_to_leave,
        metrics: MonitorMetrics | None = None,
    ) -> None:
        self.config = config
        self.paths = paths
        self.ledger = Ledger(paths.ledger)
        self._publish = publish
        self._clock = clock
        self._enforce = enforce
        self._metrics = metrics or MonitorMetrics()
        self._programs = [program for program in programs(config) if program.role is not Role.MONITOR]
        self._observed = ObservedClock(max_gap_s=2 * config.monitor.interval_s)
        self._watches: dict[str, ProgressWatch] = {}
        self._tail = LedgerTail(self.ledger)
        self._memory = MemoryWatch(self._tail.entries, self._append, dismiss)
        self._ready = {e.program: (e.pid, e.generation) for e in self._tail.entries if isinstance(e, Ready)}
        self._parked: dict[str, ProgramState] = {}
        engines = {program.name: program.model for program in self._programs if program.model is not None}
        self._quarantine = Quarantine(engines, paths, self._append)
        self._quarantine.begin(self._tail.entries)
        self.num_rounds = 0

    def look(self) -> None:
        """One round: look at every process, judge it, and tell what is new."""
        uncounted_s = self._observed.look(self._clock())
        if uncounted_s > 1:
            log.warning("monitor_overslept", uncounted_s=round(uncounted_s, 1))
        looks = {program: look_at(program.name, self.paths) for program in self._programs}
        for program, seen in looks.items():
            self._judge(program, seen)
            if program.role is Role.ENGINE:
                self._tell_ready(program, seen.page)
            self._tell_parked(program, seen.launch)
        self._memory.look(looks, self.config, self._observed.now_s)
        self.read_ledger()
        self.num_rounds += 1

    def model_views(self) -> dict[str, ModelView]:
        """How each model is at this very moment, by its engine nearest to serving and by what is wanted. Nobody is asked."""
        engines: dict[str, list[ModelView]] = {model.name: [] for model in self.config.models}
        for program in self._programs:
            if program.model is not None:
                engines[program.model].append(self._view(program))
        return {model: self._model_view(model, views) for model, views in engines.items()}

    def _model_view(self, model: str, engines: list[ModelView]) -> ModelView:
        best = nearest_to_serving(engines, lambda view: view.state)
        state = model_state(best.state, read_desired(self.paths.model(model)))
        return msgspec.structs.replace(best, state=state)

    def pages(self) -> dict[str, Page]:
        """The pages of every process that lives."""
        looks = {program.name: look_at(program.name, self.paths) for program in programs(self.config)}
        return {name: seen.page for name, seen in looks.items() if seen.page is not None}

    def _view(self, program: Program) -> ModelView:
        seen = look_at(program.name, self.paths)
        page, launch, watch = seen.page, seen.launch, self._watches.get(program.name)
        rung = watch.rung if watch and page and watch.is_of(page) else None
        state = process_state(
            "STOPPED" if seen.pid is None else "RUNNING",
            rung,
            launch.state if launch else None,
            page.phase if page else None,
        )
        if launch is not None and launch.state in (LaunchState.BACKOFF, LaunchState.PARKED):
            due_s = launch.next_try_at_s
            return ModelView(state, launch.reason, None if due_s is None else round(max(0, due_s - boottime_s()), 1))
        return ModelView(state, page.message if page else "")

    # -- verdicts --

    def _judge(self, program: Program, seen: Look) -> None:
        page = seen.page
        if page is None:
            self._watches.pop(program.name, None)
            return
        now_s = self._observed.now_s
        watch = self._watches.get(program.name)
        if watch is None or not watch.is_of(page):
            self._watches[program.name] = ProgressWatch(program.role, page, moved_at_s=now_s)
            return
        is_stopped = page.num_ticks == watch.page.num_ticks and kernel_state(page.pid) == "T"
        for action in watch.look(page, is_stopped, now_s, self.config.recovery):
            self._act(program, watch, action)

    def _act(self, program: Program, watch: ProgressWatch, action: Action) -> None:
        page = watch.page
        state = kernel_state(page.pid)
        reason = watch.reason(self._observed.now_s, self.config.recovery, state)
        if action is Action.CLEARED:
            reason = "it moves again"
        fields = {"process": program.name, "process_pid": page.pid, "model": program.model}
        log.warning("process_judged", action=action.value, reason=reason, **fields)
        self._append(
            Verdict(
                **stamp(program.name),
                pid=page.pid,
                verdict="hang",
                action=action,
                reason=reason,
                model=program.model,
                stopped=state == "T",
            )
        )
        if action is Action.SUSPECT and program.model is not None:
            self._publish(EngineEvent(EventKind.ENGINE_HANG, program.model, page.generation, page.pid, reason))
        if not self._enforce(action, page.pid, page.start_ticks):
            log.info("process_gone", action=action.value, **fields)

    # -- news --

    def _tell_ready(self, program: Program, page: Page | None) -> None:
        if page is None or not page.generation or page.phase not in (Phase.READY, Phase.STEPPING):
            return
        life = (page.pid, page.generation)
        if self._ready.get(program.name) == life or program.model is None:
            return
        self._ready[program.name] = life
        log.info(
            "engine_ready",
            process=program.name,
            process_pid=page.pid,
            model=program.model,
            generation=page.generation,
        )
        self._append(Ready(**stamp(program.name), pid=page.pid, generation=page.generation, model=program.model))
        self._publish(EngineEvent(EventKind.ENGINE_READY, program.model, page.generation, page.pid))

    def _tell_parked(self, program: Program, launch: ProgramState | None) -> None:
        if launch is None or launch.state is not LaunchState.PARKED:
            self._parked.pop(program.name, None)
            return
        before = self._parked.get(program.name)
        self._parked[program.name] = launch
        if before is not None and (before.pid, before.since_s) == (launch.pid, launch.since_s):
            return
        log.error("process_parked", process=program.name, model=program.model, reason=launch.reason)
        if program.model is not None:
            self._publish(EngineEvent(EventKind.ENGINE_PARKED, program.model, 0, launch.pid, launch.reason))

    def read_ledger(self) -> None:
        """Judge and tell the deaths that were written since the last call; cheap if nothing was."""
        try:
            news = self._tail.news()
        except OSError as error:
            log.error("ledger_unreadable", error=str(error))
            return
        self._quarantine.take(news, self._tail.entries)
        for entry in news:
            if isinstance(entry, Death):
                self._tell_death(entry)

    def _tell_death(self, death: Death) -> None:
        level = log.info if death.requested else log.warning
        level("process_died", process=death.program, process_pid=death.pid, model=death.model, cause=death.cause)
        if death.model is not None:
            self._publish(
                EngineEvent(EventKind.ENGINE_DEAD, death.model, death.generation, death.pid, death.cause)
            )

    def _append(self, entry: LedgerEntry) -> None:
        if isinstance(entry, Verdict):
            self._metrics.verdict(entry.program, entry.verdict, entry.action)
        try:
            self.ledger.append(entry)
        except OSError as error:  # a full disk must not stop a verdict
            log.error("ledger_write_failed", error=str(error))
