"""Keeps a worker's `hot` values up to date: reads effective.json again whenever a reload replaces it.

A thread that sleeps in the kernel until then (inotify), or looks each second where that is refused. Knows no key:
whoever is told takes what it reads.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

from aphrodited.config.loader import read_effective
from aphrodited.config.schema import Config
from aphrodited.errors import ConfigError
from aphrodited.health.filewatch import FileWatch
from aphrodited.log import get_logger

log = get_logger()

POLL_S = 1.0


def follow_config(path: Path, apply: Callable[[Config], None]) -> threading.Thread:
    """Call `apply` with the file's configuration, from a thread of its own: once now and after each replacement.

    The thread ends with the process. What cannot be read is logged and passed over.
    """
    thread = threading.Thread(target=_follow, args=(path, apply), name="config", daemon=True)
    thread.start()
    return thread


def _follow(path: Path, apply: Callable[[Config], None]) -> None:
    wait = _waiter(path)
    seen: tuple[int, int] | None = None
    while True:
        try:
            status = path.stat()
            stamp = (status.st_ino, status.st_mtime_ns)
            if stamp != seen:
                seen = stamp
                apply(read_effective(path))
        except FileNotFoundError:
            seen = None
        except ConfigError as error:
            log.error("config_unreadable", problems=error.problems)
        wait()


def _waiter(path: Path) -> Callable[[], None]:
    """Something to sleep in until the file may have changed."""
    try:
        watch = FileWatch(path)
    except OSError as error:
        log.warning("config_watch_failed", error=str(error), poll_s=POLL_S)
        return lambda: time.sleep(POLL_S)

    def wait() -> None:
        while not watch.changed():
            select.select([watch.fileno()], [], [])

    return wait
