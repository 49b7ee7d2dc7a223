"""The status of a daemon: one merged answer from its supervisor, pages, launchers and ledger.

Works as well when the daemon is down: then every process is `stopped`. Reads only, and stays light: the operator's
command imports it. What the pieces of evidence mean together is the table in `health.states`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aphrodited.config.schema import Config, ModelConfig
from aphrodited.health.probes import (
    NOTHING_SEEN,
    Look,
    lock_holder,
    locked_at_s,
    look_at,
    process_uptime_s,
)
from aphrodited.health.programs import Program, programs
from aphrodited.health.record import LastExit, Record, describe_exit
from aphrodited.health.states import (
    Action,
    Standing,
    State,
    daemon_standing,
    model_state,
    nearest_to_serving,
    process_state,
)
from aphrodited.page import Page
from aphrodited.paths import DaemonPaths
from aphrodited.procfs import resident_bytes
from aphrodited.supervision.desired import Desired, read_desired
from aphrodited.supervision.ledger import Ledger, Verdict, boottime_s
from aphrodited.supervision.program_state import LaunchState, ProgramState
from aphrodited.supervision.rpc import (
    ProcessInfo,
    SupervisorClient,
    SupervisorDownError,
    SupervisorRefusedError,
)

SUPERVISOR_NAME = "supervisord"
SUPERVISOR_ROLE = "supervisor"
_ORDERED = {Desired.DRAINED: "drained by an operator", Desired.UNLOADED: "unloaded by an operator"}
_ACTIONS = {action.value: action for action in Action}


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process. generation: of an engine that was promoted, else None. restarts: deaths since the daemon started.

    reason: why it is in this state, or what it says of itself; may be empty. next_try_s: seconds until a waiting
    one is started. progress: of loading, 0 to 1.
    """

    name: str
    role: str
    model: str | None
    state: State
    pid: int | None
    generation: int | None = None
    uptime_s: float | None = None
    restarts: int = 0
    last_exit: LastExit | None = None
    reason: str = ""
    next_try_s: float | None = None
    progress: float | None = None
    rss_bytes: int | None = None
    num_finished: int | None = None
    num_running: int | None = None
    num_waiting: int | None = None


class ModelStatus(msgspec.Struct, frozen=True):
    """One model, by its engine that is nearest to serving. num_standby: engines that wait to take over.

    deterministic: whether a request's tokens are the same in any batch; None as long as no engine has said so.
    """

    name: str
    state: State
    generation: int | None
    engines: tuple[str, ...]
    backend: str
    reason: str = ""
    next_try_s: float | None = None
    progress: float | None = None
    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    num_generated_tokens: int = 0
    num_standby: int = 0
    deterministic: bool | None = None


class DaemonStatus(msgspec.Struct, frozen=True):
    """The whole daemon. ready: everything that is configured and not unloaded serves (state `ready`)."""

    ready: bool
    state: Standing
    reason: str
    uptime_s: float | None
    processes: tuple[ProcessStatus, ...]
    models: tuple[ModelStatus, ...]

    def to_json(self) -> str:
        """The stable form: `ready`, `processes`, `models` and more, indented for people."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


def read_status(config: Config, paths: DaemonPaths) -> DaemonStatus:
    """The status at this moment. Blocks for the supervisor's answer (milliseconds; 5 s if it hangs)."""
    infos: dict[str, ProcessInfo] | None
    try:
        client = SupervisorClient(paths.supervisor_socket)
        supervisor_pid: int | None = client.pid()
        infos = {info.name: info for info in client.processes()}
        reason = ""
    except (SupervisorDownError, SupervisorRefusedError) as error:
        supervisor_pid, infos, reason = lock_holder(paths.daemon_lock), None, str(error)
    try:
        entries = Ledger(paths.ledger).read()
    except OSError as error:
        entries, reason = [], reason or f"the ledger cannot be read: {error}"
    record = Record(entries, None if supervisor_pid is None else locked_at_s(paths.daemon_lock))
    known = programs(config)
    looks = {program.name: look_at(program.name, paths) for program in known}
    desired = {model.name: read_desired(paths.model(model.name)) for model in config.models}
    return merge_status(config, known, infos, looks, record, supervisor_pid, reason, desired)


def merge_status(
    config: Config,
    known: list[Program],
    infos: dict[str, ProcessInfo] | None,
    looks: dict[str, Look],
    record: Record,
    supervisor_pid: int | None,
    reason: str,
    desired: Mapping[str, Desired] | None = None,
) -> DaemonStatus:
    """Put the evidence together. infos: None if the supervisor does not answer, and `reason` says how.

    desired: what the operator wants of models; of those left out, that they are served.
    """
    now_s = boottime_s()
    processes = [
        _process_status(
            program,
            (infos or {}).get(program.name),
            infos is not None,
            looks.get(program.name, NOTHING_SEEN),
            record,
            now_s,
        )
        for program in known
    ]
    wanted = desired or {}
    models = [
        _model_status(model, processes, looks, wanted.get(model.name, Desired.SERVED)) for model in config.models
    ]
    started_at_s = record.daemon_started_at_s  # its process may have been the script that set everything up
    uptime_s = None if started_at_s is None else round(max(0.0, now_s - started_at_s), 3)
    supervisor = _supervisor_status(supervisor_pid, infos is not None, reason, uptime_s)
    others = [process.state for process in processes if process.model is None]
    standing = daemon_standing(supervisor.state, [model.state for model in models], others)
    return DaemonStatus(
        ready=standing is Standing.READY,
        state=standing,
        reason=reason,
        uptime_s=uptime_s,
        processes=(supervisor, *processes),
        models=tuple(models),
    )


def _process_status(
    program: Program, info: ProcessInfo | None, has_supervisor: bool, look: Look, record: Record, now_s: float
) -> ProcessStatus:
    statename, pid = _supervised(info, has_supervisor, look)
    page = look.page if look.page and look.page.pid == pid else None
    launch = look.launch if look.launch and look.launch.pid == pid else None
    verdict = record.verdict_on(program.name, pid)
    state = process_state(
        statename,
        _ACTIONS.get(verdict.action) if verdict else None,
        launch.state if launch else None,
        page.phase if page else None,
    )
    death = record.last_deaths.get(program.name)
    return ProcessStatus(
        name=program.name,
        role=str(program.role),
        model=program.model,
        state=state,
        pid=pid,
        generation=(page.generation or None) if page else None,
        uptime_s=_uptime_s(pid, launch, now_s),
        restarts=record.num_deaths.get(program.name, 0),
        last_exit=describe_exit(death) if death else None,
        reason=_reason(state, info, page, launch, verdict) or record.memory_complaint(program.name, pid),
        next_try_s=_next_try_s(state, launch, now_s),
        progress=page.progress if page and state is State.LOADING else None,
        rss_bytes=resident_bytes(pid) if pid else None,
        num_finished=page.num_finished if page else None,
        num_running=page.num_running if page else None,
        num_waiting=page.num_waiting if page else None,
    )


def _supervised(info: ProcessInfo | None, has_supervisor: bool, look: Look) -> tuple[str, int | None]:
    """The supervisor's word on a process, or, if it does not answer, what the process itself shows."""
    if info is not None:
        return info.statename, info.pid or None
    if look.pid is not None and not has_supervisor:
        return "RUNNING", look.pid
    return "STOPPED", None


def _uptime_s(pid: int | None, launch: ProgramState | None, now_s: float) -> float | None:
    """Since the worker was executed, or else since the process began: a launcher may have waited for long."""
    if pid is None:
        return None
    if launch is not None and launch.state is LaunchState.RUNNING:
        return round(max(0.0, now_s - launch.since_s), 3)
    uptime_s = process_uptime_s(pid, now_s)
    return None if uptime_s is None else round(uptime_s, 3)


def _next_try_s(state: State, launch: ProgramState | None, now_s: float) -> float | None:
    if state not in (State.BACKOFF, State.PARKED) or launch is None or launch.next_try_at_s is None:
        return None
    return round(max(0.0, launch.next_try_at_s - now_s), 1)


def _reason(
    state: State,
    info: ProcessInfo | None,
    page: Page | None,
    launch: ProgramState | None,
    verdict: Verdict | None,
) -> str:
    """Why a process is in a state that needs one, by the witness that put it there."""
    if state in (State.SUSPECT, State.UNKILLABLE):
        return verdict.reason if verdict else ""
    if state in (State.BACKOFF, State.PARKED):
        return (launch.reason if launch else "") or (info.spawnerr if info else "")
    if launch is not None and launch.state is LaunchState.WAITING:
        return launch.reason
    return page.message if page else ""


def _model_status(
    model: ModelConfig, processes: list[ProcessStatus], looks: dict[str, Look], desired: Desired
) -> ModelStatus:
    engines = [process for process in processes if process.model == model.name]
    best = nearest_to_serving(engines, lambda engine: engine.state)
    page = looks.get(best.name, NOTHING_SEEN).page
    is_alive = page is not None and page.pid == best.pid
    return ModelStatus(
        name=model.name,
        state=model_state(best.state, desired),
        generation=best.generation,
        engines=tuple(engine.name for engine in engines),
        backend=model.backend,
        reason=_ORDERED.get(desired, "") or best.reason,
        next_try_s=best.next_try_s,
        progress=best.progress,
        num_running=page.num_running if page else 0,
        num_waiting=page.num_waiting if page else 0,
        kv_blocks_used=page.num_blocks_used if page else 0,
        kv_blocks_total=page.num_blocks_total if page else 0,
        num_generated_tokens=page.num_generated_tokens if page else 0,
        num_standby=sum(engine.state is State.STANDBY for engine in engines),
        deterministic=page.is_deterministic if page is not None and is_alive else None,
    )


def _supervisor_status(pid: int | None, answers: bool, reason: str, uptime_s: float | None) -> ProcessStatus:
    """The supervisor as a process. It may live without an answer: while it starts, or when it hangs."""
    if answers:
        state = State.READY
    else:
        state = State.STOPPED if pid is None else State.SUSPECT
    return ProcessStatus(
        name=SUPERVISOR_NAME,
        role=SUPERVISOR_ROLE,
        model=None,
        state=state,
        pid=pid,
        uptime_s=uptime_s,
        reason="" if answers else reason,
        rss_bytes=resident_bytes(pid) if pid else None,
    )
