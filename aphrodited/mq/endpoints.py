"""Generations: who serves a model now, and in which folder its sockets lie.

    promote    take the model's lock file, write generation and holder into it, make the folder <N>/
    announce   after the sockets are bound: replace `current` by one that says N
    hand_over  take the announcement back and release the model's lock; the folder stays until what runs has ended
    close      remove what is ours, release the lock

The kernel releases a dead holder's locks, so a lock that can be taken is the proof that its owner is gone: the
model's lock for the right to serve, the lock on each generation's folder for the right to remove it. Knows no socket.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from aphrodited.errors import AphroditeError, ConfigError
from aphrodited.log import get_logger
from aphrodited.paths import MAX_SOCKET_PATH, ModelPaths
from aphrodited.procfs import is_same_process, process_start_ticks

log = get_logger()

KINDS = ("input", "output", "health", "data")
LOCK_RETRY_S = 0.02
LOCK_SIZE = 128  # bytes; more than a lock file ever says


class GenerationTakenError(AphroditeError):
    """Another live engine process serves this model."""

    code = "generation_taken"


class Current(NamedTuple):
    """One reading of `current`. Readings of two announcements differ, even if the number is the same."""

    generation: int
    inode: int
    changed_at_ns: int


class Holder(NamedTuple):
    """An engine process that was promoted, and when it started, in clock ticks since boot."""

    pid: int
    start_ticks: int


def read_current(paths: ModelPaths) -> Current | None:
    """The generation announced last, whether or not it still lives; None if there is none."""
    try:
        with open(paths.current, encoding="ascii") as file:
            generation = int(file.read())
            stat = os.fstat(file.fileno())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return Current(generation, stat.st_ino, stat.st_mtime_ns)


def check_socket_paths(paths: ModelPaths) -> None:
    """Raise ConfigError if the longest socket path of this model does not fit into a socket address."""
    longest = max(len(os.fsencode(paths.generation(10**9) / kind)) for kind in KINDS)
    if longest > MAX_SOCKET_PATH:
        raise ConfigError(
            f"socket paths under {paths.folder} have up to {longest} bytes and the system takes {MAX_SOCKET_PATH}:"
            " set paths.runtime_dir to a shorter directory"
        )


class Generation:
    """The right to serve a model, held from `promote` to `hand_over` or `close`, or to the death of this process."""

    def __init__(self, paths: ModelPaths, number: int, lock_fd: int) -> None:
        self.paths = paths
        self.number = number
        self._lock_fd: int | None = lock_fd
        self.folder.mkdir(mode=0o700)
        self._folder_fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def folder(self) -> Path:
        return self.paths.generation(self.number)

    def endpoint(self, kind: str) -> str:
        return self.paths.endpoint(self.number, kind)

    def announce(self) -> None:
        """Tell clients to come here. All sockets are bound by now."""
        temporary = self.paths.folder / f".current.{os.getpid()}"
        temporary.write_text(f"{self.number}\n", encoding="ascii")
        os.replace(temporary, self.paths.current)

    def hand_over(self) -> None:
        """Let the next engine in, and keep the folder with this one's sockets. Idempotent."""
        if self._lock_fd is None:
            return
        current = read_current(self.paths)
        if current is not None and current.generation == self.number:
            self.paths.current.unlink(missing_ok=True)
        fcntl.flock(self._lock_fd, fcntl.LOCK_UN)  # closing alone would leave it with whoever inherited the descriptor
        os.close(self._lock_fd)
        self._lock_fd = None

    def close(self) -> None:
        """Hand over, if that was not done before, and take back the folder."""
        self.hand_over()
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._folder_fd)


def promote(paths: ModelPaths, *, wait_s: float = 5.0) -> Generation:
    """Become the model's active engine, waiting up to `wait_s` for a leaving one.

    Raises GenerationTakenError if another process still serves the model, ConfigError if the paths are too long.
    """
    check_socket_paths(paths)
    lock_fd = open_lock(paths)
    try:
        until_s = time.monotonic() + wait_s
        while not try_lock(lock_fd):
            if time.monotonic() >= until_s:
                raise GenerationTakenError(
                    f"another engine process holds {paths.lock}: stop it before starting a second one"
                )
            time.sleep(LOCK_RETRY_S)
        return begin_generation(paths, lock_fd)
    except BaseException:
        os.close(lock_fd)
        raise


def open_lock(paths: ModelPaths) -> int:
    """A descriptor of the model's lock file, which is made if it is not there. The lock itself is not touched."""
    paths.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(lock_fd: int) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def begin_generation(paths: ModelPaths, lock_fd: int) -> Generation:
    """The next generation, of the process that has locked `lock_fd`, which belongs to the Generation from here on."""
    number = _last_generation(lock_fd, paths) + 1
    text = f"{number} {os.getpid()} {process_start_ticks(os.getpid())}\n".encode()
    os.pwrite(lock_fd, text, 0)
    os.ftruncate(lock_fd, len(text))
    _remove_dead_generations(paths)
    return Generation(paths, number, lock_fd)


def read_holder(lock_fd: int) -> Holder | None:
    """The process that wrote itself into the lock file last, dead or alive; None if the file names none."""
    try:
        _, pid, start_ticks = os.pread(lock_fd, LOCK_SIZE, 0).splitlines()[0].split()
        return Holder(int(pid), int(start_ticks))
    except (ValueError, IndexError):
        return None


def is_served(paths: ModelPaths) -> bool:
    """Whether an engine process that was promoted lives. Takes no lock: trying it would look like a holder."""
    try:
        fd = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        holder = read_holder(fd)
    finally:
        os.close(fd)
    return holder is not None and is_same_process(holder.pid, holder.start_ticks)


def _last_generation(lock_fd: int, paths: ModelPaths) -> int:
    """The highest number ever used here. A lock file that says nothing is made up for by what else there is."""
    try:
        last = int(os.pread(lock_fd, LOCK_SIZE, 0).split()[0])
    except (ValueError, IndexError):
        last = 0
    current = read_current(paths)
    return max(last, current.generation if current else 0, *(int(f.name) for f in _generation_folders(paths)), 0)


def _generation_folders(paths: ModelPaths) -> list[Path]:
    return [f for f in paths.folder.iterdir() if f.name.isdecimal() and f.is_dir()]


def _remove_dead_generations(paths: ModelPaths) -> None:
    for folder in _generation_folders(paths):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        except BlockingIOError:
            log.info("generation_kept", generation=int(folder.name), reason="its engine is still draining")
        finally:
            os.close(fd)
