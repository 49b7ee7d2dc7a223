"""Takes possession of a daemon's directories: one daemon at a time, and nothing left of an earlier one.

The lock decides: whoever holds it may remove what lies in the runtime directory and may end processes that still
carry the earlier daemon's mark in their environment. Knows nothing of what the files mean.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import time
from pathlib import Path

from aphrodited.errors import AphroditeError, ConfigError
from aphrodited.paths import DaemonPaths
from aphrodited.procfs import process_state
from aphrodited.supervision.ledger import boottime_s

MARK = "SUPERVISOR_SERVER_URL"  # Supervisor sets it in every child: unix://<runtime_dir>/supervisor.sock
LEFTOVERS_TIMEOUT_S = 10.0


class DaemonRunningError(AphroditeError):
    """Another daemon holds the lock of this configuration."""


def take_lock(paths: DaemonPaths) -> int:
    """Make the runtime directory, lock it for our life and return the lock's file descriptor.

    It says who holds it and since when: his pid and the second of the boot clock, a line each.
    Raises DaemonRunningError naming the process that has it, ConfigError if the directory cannot be ours.
    """
    _make_private(paths.runtime_dir)
    _check_is_ours(paths)
    fd = os.open(paths.daemon_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").partition("\n")[0] or "unknown"
        os.close(fd)
        raise DaemonRunningError(
            f"a daemon of this configuration is running already: pid {holder} (it holds {paths.daemon_lock})"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n{boottime_s():.3f}\n".encode(), 0)
    return fd


def end_leftovers(paths: DaemonPaths) -> list[int]:
    """Kill what an earlier daemon of this runtime directory left running; returns the pids. Needs the lock.

    Waits until they are gone, at most LEFTOVERS_TIMEOUT_S: they may hold the port, memory and locks.
    """
    mark = f"{MARK}=unix://{paths.supervisor_socket}".encode()
    found = _marked_processes(mark)
    for pid in found:
        _kill(pid)
    give_up_at_s = time.monotonic() + LEFTOVERS_TIMEOUT_S
    while any(process_state(pid) not in (None, "Z") for pid in found) and time.monotonic() < give_up_at_s:
        time.sleep(0.02)
    return found


def prepare(paths: DaemonPaths) -> bool:
    """Remove the files of an earlier life and make every directory; whether there were any. Needs the lock.

    A daemon that ends as it should leaves none: if there were some, its processes may be just about to end.
    Raises ConfigError if a directory cannot be made or written.
    """
    was_unclean = remove_runtime_files(paths) > 0
    for path in (paths.page("x").parent, paths.program_state("x").parent, paths.metrics_dir):
        _make_private(path)
    for path in (paths.log_dir, paths.state_dir, paths.cache_dir):
        try:
            path.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be made: {error.strerror}") from None
        if not os.access(path, os.W_OK | os.X_OK):
            raise ConfigError(f"{path}: may not be written by user {os.geteuid()}")
    return was_unclean


def remove_runtime_files(paths: DaemonPaths) -> int:
    """Leave only the lock file, whose removal would let two daemons each hold one. Needs the lock."""
    num_removed = 0
    for entry in paths.runtime_dir.iterdir():
        if entry == paths.daemon_lock:
            continue
        num_removed += 1
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    return num_removed


def _make_private(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.stat(path, follow_symlinks=False)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be made: {error.strerror}; choose another paths.runtime_dir") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise ConfigError(
            f"{path}: exists and is not a directory of user {os.geteuid()}; choose another paths.runtime_dir"
        )
    os.chmod(path, 0o700)


def _check_is_ours(paths: DaemonPaths) -> None:
    """A directory with other content was named by mistake: it must not be emptied."""
    if not paths.daemon_lock.exists() and any(paths.runtime_dir.iterdir()):
        raise ConfigError(
            f"paths.runtime_dir: {paths.runtime_dir} holds files that are not of a daemon; name an empty or new one"
        )


def _marked_processes(mark: bytes) -> list[int]:
    """Processes with the mark in their environment, but neither us nor whoever started us."""
    spared = _ancestors()
    marked = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in spared:
            continue
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile, or another user's
            continue
        if mark in environment:
            marked.append(int(name))
    return marked


def _ancestors() -> set[int]:
    pids, pid = set(), os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        try:
            stat_text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(stat_text[stat_text.rindex(")") + 2 :].split()[1])
    return pids


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
