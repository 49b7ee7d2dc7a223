"""A daemon to be measured: started from a configuration file, watched through /proc, stopped. Knows no workload."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from aphrodited.bench.report import cpu_seconds
from aphrodited.config.loader import daemon_paths, load_config, read_effective
from aphrodited.health.states import State
from aphrodited.health.status import ProcessStatus, read_status

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


class DaemonUnderTest:
    """Ready when made. No other may run from the same file.

    ready_s: how long it took to become so.  pids: of its processes by name.
    """

    def __init__(self, config_file: Path) -> None:
        self.config = load_config(config_file)
        self.url = f"http://{self.config.api.host}:{self.config.api.port}"
        started_at_s = time.monotonic()
        self._process = subprocess.Popen([sys.executable, "-m", "aphrodited.cli.aphrodited", "--config", str(config_file)])
        try:
            self._wait_until_ready(started_at_s + READY_TIMEOUT_S)
            self.ready_s = time.monotonic() - started_at_s
            self.pids = {process.name: process.pid for process in self._processes() if process.pid}
        except BaseException:
            self.stop()
            raise

    def wait_settled(self) -> None:
        """Return when nothing starts or loads any more: a standby does so after the daemon is ready."""
        until_s = time.monotonic() + READY_TIMEOUT_S
        while any(process.state not in (State.READY, State.STANDBY) for process in self._processes()):
            if time.monotonic() > until_s:
                raise SystemExit("not every process became ready or standby; the status says why")
            time.sleep(0.2)

    def active_engine(self) -> int:
        """The process that serves the first model. Raises SystemExit if there is none."""
        model = self.config.models[0].name
        pids = [p.pid for p in self._processes() if p.model == model and p.state is State.READY]
        if not pids or pids[0] is None:
            raise SystemExit(f"no engine serves {model}")
        return pids[0]

    def cpu_s(self) -> dict[str, float]:
        """Processor time used so far, by process name."""
        return {name: cpu_seconds(pid) for name, pid in self.pids.items()}

    def stop(self) -> float:
        """Seconds it took. Idempotent."""
        began_at_s = time.monotonic()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_TIMEOUT_S)
        return time.monotonic() - began_at_s

    def _processes(self) -> tuple[ProcessStatus, ...]:
        paths = daemon_paths(self.config)
        return read_status(read_effective(paths.effective_config), paths).processes

    def _wait_until_ready(self, until_s: float) -> None:
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise SystemExit("the daemon did not become ready; its log says why")
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
