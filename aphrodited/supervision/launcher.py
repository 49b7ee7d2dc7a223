"""What every program starts as: prepares the process, waits as long as the governor says, then becomes the worker.

Same pid from the supervisor's fork to the worker, so that a stop works at any moment and the restart policy lives
neither in the supervisor nor in the monitor. In order:

    1  close every inherited file descriptor except the listening socket of an API worker
    2  die with the supervisor (PR_SET_PDEATHSIG)
    3  resource limits, and who is to be killed first when memory runs out
    4  wait until the process group of the previous life is empty; a process that is gone has given its memory back
    5  ask the governor; publish the state; wait. SIGUSR1, or a Reset in the ledger, ends the wait
    6  an engine of several: wait until it may load
    7  keep to the CPUs that the configuration gives it, and execute the worker

Every step is worth milliseconds, so this imports little. Knows no worker: the command comes from its caller.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from aphrodited.config.cpus import parse_cpus
from aphrodited.config.schema import Config
from aphrodited.errors import EXIT_TEMPORARY
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.governor import Decision, decide
from aphrodited.supervision.launch_queue import LaunchQueue
from aphrodited.supervision.ledger import Ledger, boot_id, boottime_s
from aphrodited.supervision.program_state import (
    LaunchState,
    ProgramState,
    read_program_state,
    write_program_state,
)
from aphrodited.supervision.programs import Program, Role, programs

DAEMON_PID_VARIABLE = "APHRODITED_DAEMON_PID"
BLIND_DELAY_S = 5.0
"""Before a start whose history is not known, because the ledger or the configuration cannot be read."""

POLL_S = 0.5
GROUP_TIMEOUT_S = 30.0
MAX_OPEN_FILES = 65536
_PR_SET_PDEATHSIG = 1
_OOM_SCORES = {Role.MONITOR: 0, Role.API: 100, Role.ENGINE: 300}

WorkerCommand = Callable[[Config, Program], tuple[list[str], dict[str, str]]]
"""The worker's argument list, and what its environment needs on top of ours."""


class LaunchOptions(msgspec.Struct, frozen=True):
    runtime_dir: Path
    program: str
    listen_fd: int | None = None


def parse_options(argv: Sequence[str]) -> LaunchOptions:
    """`--runtime-dir DIR --program NAME [--listen-fd N]`, as conf_writer writes it and workers get it too."""
    names = {"--runtime-dir", "--program", "--listen-fd"}
    given = dict(zip(argv[::2], argv[1::2], strict=False))
    if len(argv) % 2 or not given.keys() <= names or len(given) * 2 != len(argv):
        raise SystemExit(f"usage: --runtime-dir DIR --program NAME [--listen-fd N]; got {' '.join(argv)}")
    listen_fd = given.get("--listen-fd")
    return LaunchOptions(
        Path(given["--runtime-dir"]), given["--program"], int(listen_fd) if listen_fd is not None else None
    )


def launch(argv: Sequence[str], command: WorkerCommand) -> NoReturn:
    """Carry out the whole sequence; ends as the worker, or with exit code 75 after a fixed wait if it cannot."""
    options = parse_options(argv)
    close_files(options.listen_fd)
    die_with_supervisor()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    paths, config = read_config(options.runtime_dir)
    program = next((known for known in programs(config) if known.name == options.program), None) if config else None
    if paths is None or config is None or program is None:
        say("launch_failed", options.program, reason="effective.json cannot be read or does not name this program")
        wait_for_signal(BLIND_DELAY_S)
        sys.exit(EXIT_TEMPORARY)
    set_limits(program.role, config.recovery.core_dumps)
    wait_for_previous_life(paths, program.name)
    decision = wait_for_turn(paths, config, program.name)
    wait_for_peers(paths, config, program)
    config = newest_config(paths, config)
    set_cpus(config, program)
    arguments, environment = command(config, program)
    publish(paths, program.name, LaunchState.RUNNING, decision)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # one that comes too late must not end the worker
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    os.execve(arguments[0], [*arguments, *argv], {**os.environ, **environment})


def read_config(runtime_dir: Path) -> tuple[DaemonPaths | None, Config | None]:
    """From effective.json, without the YAML side of the configuration."""
    try:
        data = (runtime_dir / "effective.json").read_bytes()
        config = msgspec.json.decode(data, type=Config)
    except (OSError, msgspec.DecodeError):
        return None, None
    paths = config.paths
    if paths.log_dir is None or paths.state_dir is None:
        return None, None
    return DaemonPaths(runtime_dir, Path(paths.log_dir), Path(paths.state_dir)), config


def newest_config(paths: DaemonPaths, config: Config) -> Config:
    """What a reload may have put in place of `config` meanwhile."""
    return read_config(paths.runtime_dir)[1] or config


def close_files(keep: int | None) -> None:
    """Close everything from 3 up but `keep`."""
    last = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    end = 1 << 20 if last == resource.RLIM_INFINITY else last
    os.closerange(3, end if keep is None else keep)
    if keep is not None:
        os.closerange(keep + 1, end)


def die_with_supervisor() -> None:
    """Have the kernel kill us when the supervisor ends, however it ends. The setting survives the exec.

    The signal comes when the forking thread ends, and the supervisor has only one. It may have ended before the call.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    expected = os.environ.get(DAEMON_PID_VARIABLE)
    if expected is not None and str(os.getppid()) != expected:
        sys.exit(EXIT_TEMPORARY)


def set_limits(role: Role, core_dumps: bool) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if not core_dumps:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if _OOM_SCORES[role]:
        _prefer_as_victim(_OOM_SCORES[role])


def set_cpus(config: Config, program: Program) -> None:
    """Keep the program, and every thread it will have, on the CPUs that its part of the configuration names."""
    lists = {model.name: model.engine.cpus for model in config.models} if program.role is Role.ENGINE else {}
    cpus = config.api.cpus if program.role is Role.API else lists.get(program.model or "")
    if cpus is None:
        return
    try:
        os.sched_setaffinity(0, parse_cpus(cpus))
    except OSError as error:
        say("cpus_unset", program.name, cpus=cpus, reason=str(error))


def _prefer_as_victim(score: int) -> None:
    """The engine holds the memory and comes back by itself, so it goes first. Relative to what we inherited."""
    path = Path("/proc/self/oom_score_adj")
    try:
        path.write_text(str(min(1000, int(path.read_text()) + score)))
    except (OSError, ValueError) as error:
        say("oom_score_unset", "", reason=str(error))


def wait_for_previous_life(paths: DaemonPaths, program: str) -> None:
    """Return when the previous process group is empty, or after GROUP_TIMEOUT_S, said loudly."""
    previous = read_program_state(paths.program_state(program))
    if previous is None or previous.pid == os.getpid():
        return
    if not is_group_alive(previous.pid):
        return
    reason = f"process group {previous.pid} of the previous life still exists"
    publish(paths, program, LaunchState.WAITING, Decision(LaunchState.WAITING, reason=reason))
    give_up_at_s = time.monotonic() + GROUP_TIMEOUT_S
    while is_group_alive(previous.pid):
        if time.monotonic() >= give_up_at_s:
            say("leftovers_remained", program, reason=f"{reason}, {GROUP_TIMEOUT_S:g} s after SIGKILL")
            return
        time.sleep(0.02)


def is_group_alive(group: int) -> bool:
    """Whether the process group has a member that is more than a zombie."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # the number belongs to somebody else by now
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            text = Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        state, _, member_of = text[text.rindex(")") + 2 :].split()[:3]
        if int(member_of) == group and state not in "ZX":
            return True
    return False


def wait_for_turn(paths: DaemonPaths, config: Config, program: str) -> Decision:
    """Wait as long as the governor says, and ask it again, by the newest policy, whenever the ledger changes.

    Returns its last decision.
    """
    ledger = Ledger(paths.ledger)
    jitter = 2 * int.from_bytes(os.urandom(4)) / 0xFFFFFFFF - 1
    seen_ns: int | None = None
    published: tuple[LaunchState, str] | None = None
    decision = Decision(LaunchState.RUNNING)
    while True:
        changed_ns = ledger.changed_at_ns()
        if changed_ns != seen_ns:
            seen_ns = changed_ns
            config = newest_config(paths, config)
            decision = _ask(ledger, program, config, jitter)
        wait_s = (decision.next_try_at_s or 0.0) - boottime_s()
        if decision.state is LaunchState.RUNNING or wait_s <= 0:
            return decision
        if published != (decision.state, decision.reason):
            published = (decision.state, decision.reason)
            publish(paths, program, decision.state, decision)
            say("launch_delayed", program, state=decision.state, delay_s=round(wait_s, 1), reason=decision.reason)
        if wait_for_signal(min(wait_s, POLL_S)):
            say("launch_hastened", program, reason="SIGUSR1")
            return decision


def wait_for_peers(paths: DaemonPaths, config: Config, program: Program) -> None:
    """Wait until the model's other engines leave this one room to load. SIGUSR1 ends the wait."""
    peers = [peer.name for peer in programs(config) if peer.model == program.model and peer.name != program.name]
    if program.model is None or not peers:
        return
    queue = LaunchQueue(paths, paths.model(program.model), peers)
    published = ""
    while reason := queue.reason_to_wait():
        if reason != published:
            published = reason
            publish(paths, program.name, LaunchState.WAITING, Decision(LaunchState.WAITING, reason=reason))
        if wait_for_signal(POLL_S):
            say("launch_hastened", program.name, reason="SIGUSR1")
            return


def _ask(ledger: Ledger, program: str, config: Config, jitter: float) -> Decision:
    now_s = boottime_s()
    try:
        entries = ledger.read()
    except OSError as error:
        reason = f"the ledger cannot be read: {error}"
        return Decision(LaunchState.BACKOFF, BLIND_DELAY_S, now_s + BLIND_DELAY_S, reason)
    return decide(entries, program, config.recovery, boot_id=boot_id(), now_s=now_s, jitter=jitter)


def wait_for_signal(timeout_s: float) -> bool:
    """Sleep, or return True at a SIGUSR1. SIGTERM keeps its default action: it ends us, waiting or not."""
    return signal.sigtimedwait({signal.SIGUSR1}, timeout_s) is not None


def publish(paths: DaemonPaths, program: str, state: LaunchState, decision: Decision) -> None:
    """Say what we wait for. That this fails must not keep the worker from starting."""
    known = ProgramState(
        program=program,
        pid=os.getpid(),
        state=state,
        since_s=boottime_s(),
        reason=decision.reason,
        next_try_at_s=decision.next_try_at_s if state is not LaunchState.RUNNING else None,
        num_strikes=decision.num_strikes,
    )
    try:
        write_program_state(paths.program_state(program), known)
    except OSError as error:
        say("state_unwritten", program, reason=str(error))


def say(event: str, program: str, **fields: object) -> None:
    """One line in the program's log, in the form of the workers' own lines."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"
    record = {"time": stamp, "level": "warning", "event": event, "program": program, "pid": os.getpid(), **fields}
    os.write(1, msgspec.json.encode(record) + b"\n")
