"""`aphroditectl start|stop|restart`: in an order in which no standby takes over what is being stopped, and no request is lost.

    stop       a model whose engines are all stopped is written down as not wanted first; its standbys stop before its
               active engine
    restart    one process after the other: the standbys, the API workers, each of which serves again before the next one's
               turn, then the active engines, each as soon as a standby waits again to take over
    unloaded   models are left out of all this: `load` brings them back
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from aphrodited.cli.target import Target, UsageError, names_supervisor
from aphrodited.cli.terminal import complain
from aphrodited.errors import EXIT_OK, AphroditeError
from aphrodited.health.orders import is_active
from aphrodited.health.probes import look_at
from aphrodited.health.programs import Program, programs
from aphrodited.page import Phase
from aphrodited.supervision.desired import Desired, read_desired, unloaded_models, write_desired
from aphrodited.supervision.program_state import LaunchState
from aphrodited.supervision.programs import STOP_SLACK_S, Role
from aphrodited.supervision.rpc import SupervisorClient

EXIT_FAILED = 1
SHUTDOWN_POLL_S = 0.1
STANDBY_POLL_S = 0.2
STANDBY_TIMEOUT_S = 120.0
API_POLL_S = 0.05
API_TIMEOUT_S = 60.0
_DONE = {"start": "started", "stop": "stopped", "restart": "restarted"}


class NotBackError(AphroditeError):
    """A restarted process does not serve again, so that no further one may be restarted."""

    code = "not_back"


def steer(target: Target, command: str, words: list[str]) -> int:
    """Carry a command out for the processes that the words mean; returns the exit code."""
    client = SupervisorClient(target.paths.supervisor_socket)
    if names_supervisor(words):
        if command != "stop":
            raise UsageError(f"the daemon does not {command} itself; use what started it: systemctl, or aphrodited")
        return _stop_daemon(target, client.shutdown)
    chosen = target.programs(words)
    client.pid()  # raises if there is no daemon: nothing is written into its folders then
    if command != "stop":
        chosen = _without_unloaded(target, chosen)
    _write_desired(target, command, chosen)
    if command == "restart":
        return restart_programs(target, chosen, client)
    exit_code = EXIT_OK
    for program in sorted(chosen, key=lambda program: is_active(target.paths, program)):
        try:
            if command == "start":
                client.start(program.name)
            else:
                client.stop(program.name, timeout_s=_stop_timeout_s(program))
            print(f"{program.name} {_DONE[command]}")
        except AphroditeError as error:
            complain(str(error))
            exit_code = EXIT_FAILED
            if error.code == "supervisor_down":
                break
    return exit_code


def restart_programs(target: Target, chosen: Iterable[Program], client: SupervisorClient | None = None) -> int:
    """Restart programs one after the other, so that whatever they serve is served all the time; returns the exit code.

    It ends early if an API worker does not come back: the others are all that still answers.
    """
    client = client or SupervisorClient(target.paths.supervisor_socket)
    chosen = sorted(chosen, key=lambda program: is_active(target.paths, program))
    exit_code = EXIT_OK
    for program in chosen:
        try:
            if is_active(target.paths, program):
                _wait_for_standby(target, program, chosen)
            client.restart(program.name, timeout_s=_stop_timeout_s(program))
            if program.role is Role.API:
                _wait_until_ready(target, program)
            print(f"{program.name} {_DONE['restart']}")
        except AphroditeError as error:
            complain(str(error))
            exit_code = EXIT_FAILED
            if error.code in ("supervisor_down", NotBackError.code):
                break
    return exit_code


def _stop_timeout_s(program: Program) -> float:
    """How long the supervisor takes to stop a program at most, killing it included."""
    return program.stop_timeout_s + STOP_SLACK_S


def _without_unloaded(target: Target, chosen: Sequence[Program]) -> list[Program]:
    """Raises UsageError if nothing is left."""
    unloaded = unloaded_models(target.paths, {program.model for program in chosen if program.model})
    for model in sorted(unloaded):
        complain(f"{model} is unloaded and stays so: aphroditectl load {model}")
    left = [program for program in chosen if program.model not in unloaded]
    if not left:
        raise UsageError("there is nothing else to be done")
    return left


def _write_desired(target: Target, command: str, chosen: Sequence[Program]) -> None:
    """A model is stopped when all its engines are, and wanted again when one is started. What is unloaded stays so."""
    engines = [program for program in programs(target.config()) if program.role is Role.ENGINE]
    for model in dict.fromkeys(program.model for program in chosen if program.model):
        desired = read_desired(target.paths.model(model))
        if command != "stop" and desired is Desired.STOPPED:
            write_desired(target.paths, model, Desired.SERVED)
        has_all = all(engine in chosen for engine in engines if engine.model == model)
        if command == "stop" and has_all and desired.wants_engines:
            write_desired(target.paths, model, Desired.STOPPED)


def _wait_for_standby(target: Target, active: Program, chosen: Sequence[Program]) -> None:
    """Wait until one of the model's engines that were restarted before is loaded, as long as one is on its way."""
    standbys = [program for program in chosen if program.model == active.model and program.name != active.name]
    give_up_at_s = time.monotonic() + STANDBY_TIMEOUT_S
    while standbys and time.monotonic() < give_up_at_s:
        looks = [look_at(program.name, target.paths) for program in standbys]
        if any(look.page is not None and look.page.phase is Phase.STANDBY for look in looks):
            return
        delayed = (LaunchState.BACKOFF, LaunchState.PARKED)
        if all(look.launch is not None and look.launch.state in delayed for look in looks):
            return
        time.sleep(STANDBY_POLL_S)


def _wait_until_ready(target: Target, worker: Program) -> None:
    """Wait until a restarted API worker accepts connections. Raises NotBackError."""
    give_up_at_s = time.monotonic() + API_TIMEOUT_S
    reason = f"does not serve again after {API_TIMEOUT_S:g} s"
    while time.monotonic() < give_up_at_s:
        look = look_at(worker.name, target.paths)
        if look.page is not None and look.page.phase is Phase.READY:
            return
        if look.launch is not None and look.launch.state is LaunchState.PARKED:
            reason = f"is parked: {look.launch.reason}"
            break
        time.sleep(API_POLL_S)
    raise NotBackError(f"{worker.name} {reason}; nothing else is restarted")


def _stop_daemon(target: Target, shutdown: Callable[[], None]) -> int:
    shutdown()
    config = target.config()
    limit_s = config.api.drain_timeout_s + config.recovery.engine_stop_timeout_s * len(config.models) + 30
    give_up_at_s = time.monotonic() + limit_s
    while target.daemon_pid() is not None:
        if time.monotonic() > give_up_at_s:
            complain(f"the daemon is still there after {limit_s:.0f} s")
            return EXIT_FAILED
        time.sleep(SHUTDOWN_POLL_S)
    print("aphrodited stopped")
    return EXIT_OK
