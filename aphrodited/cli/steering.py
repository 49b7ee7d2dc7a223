"""`aphroditectl start|stop|restart`: in an order in which no standby takes over what is being stopped.

A model whose engines are all stopped is written down as not wanted first; its standbys stop before its active
engine. In a restart of all of them the active engine's turn comes when a standby waits again to take over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from aphrodited.cli.target import Target, UsageError, names_supervisor
from aphrodited.cli.terminal import complain
from aphrodited.errors import EXIT_OK, AphroditeError
from aphrodited.health.probes import look_at
from aphrodited.health.programs import Program, programs
from aphrodited.page import Phase
from aphrodited.supervision.desired import Desired, write_desired
from aphrodited.supervision.program_state import LaunchState
from aphrodited.supervision.programs import Role
from aphrodited.supervision.rpc import SupervisorClient

EXIT_FAILED = 1
SHUTDOWN_POLL_S = 0.1
STANDBY_POLL_S = 0.2
STANDBY_TIMEOUT_S = 120.0
_DONE = {"start": "started", "stop": "stopped", "restart": "restarted"}


def steer(target: Target, command: str, words: list[str]) -> int:
    """Carry a command out for the processes that the words mean; returns the exit code."""
    client = SupervisorClient(target.paths.supervisor_socket)
    if names_supervisor(words):
        if command != "stop":
            raise UsageError(f"the daemon does not {command} itself; use what started it: systemctl, or aphrodited")
        return _stop_daemon(target, client.shutdown)
    chosen = target.programs(words)
    client.pid()  # raises if there is no daemon: nothing is written into its folders then
    _write_desired(target, command, chosen)
    exit_code = EXIT_OK
    for program in sorted(chosen, key=lambda program: _is_active(target, program)):
        try:
            if command == "restart" and _is_active(target, program):
                _wait_for_standby(target, program, chosen)
            getattr(client, command)(program.name)
            print(f"{program.name} {_DONE[command]}")
        except AphroditeError as error:
            complain(str(error))
            exit_code = EXIT_FAILED
            if error.code == "supervisor_down":
                break
    return exit_code


def _write_desired(target: Target, command: str, chosen: Sequence[Program]) -> None:
    """A model is stopped when all its engines are, and wanted again when one is started."""
    engines = [program for program in programs(target.config()) if program.role is Role.ENGINE]
    for model in dict.fromkeys(program.model for program in chosen if program.model):
        if command != "stop":
            write_desired(target.paths.model(model), Desired.SERVED)
        elif all(engine in chosen for engine in engines if engine.model == model):
            write_desired(target.paths.model(model), Desired.STOPPED)


def _is_active(target: Target, program: Program) -> bool:
    page = look_at(program.name, target.paths).page
    return program.role is Role.ENGINE and page is not None and page.generation > 0


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
