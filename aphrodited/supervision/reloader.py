"""The supervisor's part in a reload: it starts the one who carries it out at SIGHUP, and notices what that wrote.

Carrying a reload out takes as long as engines load, and the supervisor has one thread: so a child does it, and the
service manager hears when it begins and when it is over. Knows neither the differences nor what follows from them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence

from aphrodited.config.schema import Config
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.launcher import read_config
from aphrodited.supervision.sd_notify import ServiceManager

COMMAND = (sys.executable, "-P", "-m", "aphrodited.cli.reload")


class Reloader:
    """Reloads one at a time. is_wanted: set by a signal handler; several wishes that wait are one."""

    def __init__(
        self,
        paths: DaemonPaths,
        manager: ServiceManager,
        announce: Callable[[str], None],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._paths = paths
        self._manager = manager
        self._announce = announce
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._result: int | None = None
        self.is_wanted = False

    def run_if_wanted(self, *, can_start: bool) -> None:
        """Tell of a reload that ended, and start the next one if there is to be one. Never waits."""
        if self._process is not None and self._result is not None:
            self._tell_end(self._result)
            self._process = self._result = None
        if self.is_wanted and can_start and self._process is None:
            self.is_wanted = False
            self._start()

    def ended(self, pid: int, wait_status: int) -> None:
        """Some child ended; the supervisor has reaped it."""
        if self._process is not None and pid == self._process.pid:
            self._result = self._process.returncode = os.waitstatus_to_exitcode(wait_status)

    def _start(self) -> None:
        self._announce("SIGHUP: reloading the configuration")
        self._process = subprocess.Popen(
            [*self._command, str(self._paths.runtime_dir)], stdin=subprocess.DEVNULL, stdout=sys.stderr
        )
        self._manager.reloading()

    def _tell_end(self, exit_code: int) -> None:
        self._announce("reloaded" if exit_code == 0 else f"the reload failed with exit code {exit_code}; see above")
        self._manager.reloaded()


class LiveConfig:
    """Reads effective.json again after a reload has replaced it."""

    def __init__(self, paths: DaemonPaths) -> None:
        self._paths = paths
        self._seen = self._stamp()

    def read_if_changed(self) -> Config | None:
        """The new configuration, once; None while there is no other one. One stat if nothing changed."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        return read_config(self._paths.runtime_dir)[1]

    def _stamp(self) -> tuple[int, int]:
        try:
            status = self._paths.effective_config.stat()
        except FileNotFoundError:
            return (0, 0)
        return (status.st_ino, status.st_mtime_ns)
