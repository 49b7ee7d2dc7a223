"""Runs a daemon as a process of its own for a test, in directories of its own, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from aphrodited.paths import DaemonPaths
from aphrodited.procfs import process_state
from aphrodited.supervision.ledger import Death, Ledger
from aphrodited.supervision.program_state import ProgramState, read_program_state
from aphrodited.supervision.rpc import SupervisorClient
from aphrodited.supervision.runtime_dir import end_leftovers

SUPPORT = Path(__file__).parent
FAKE_DAEMON = (sys.executable, str(SUPPORT / "fake_daemon.py"))
STALLING_DAEMON = (sys.executable, str(SUPPORT / "stalling_daemon.py"))
REAL_DAEMON = (sys.executable, "-m", "aphrodited.cli.aphrodited")

CONFIG = """
models:
  - name: tiny
    path: {folder}/none
    backend: "null"
    standby: 0
api: {{port: 0, workers: 2, drain_timeout_s: 3}}
monitor: {{port: 0}}
recovery: {{loop_hang_s: 2, ladder_step_s: 0.1, strike_delay_s: 0.2, engine_stop_timeout_s: 3}}
paths: {{runtime_dir: {folder}/run, state_dir: {folder}/state}}
"""


def wait_until(condition: Callable[[], object], timeout_s: float = 20.0, what: str = "") -> None:
    """Return when the condition holds; AssertionError after timeout_s."""
    give_up_at_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_at_s:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(0.02)


class Daemon:
    """One daemon of one configuration; start it any number of times, one after the other."""

    def __init__(self, config: str = CONFIG, entry: tuple[str, ...] = FAKE_DAEMON) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="aphd"))  # short: unix socket paths lie below it
        self.config = self.folder / "config.yaml"
        self.config.write_text(config.format(folder=self.folder))
        self.paths = DaemonPaths(self.folder / "run", self.folder / "state/log", self.folder / "state")
        self.client = SupervisorClient(self.paths.supervisor_socket)
        self.ledger = Ledger(self.paths.ledger)
        self.process: subprocess.Popen[bytes] | None = None
        self._entry = entry
        self._stderr = self.folder / "stderr"
        self._starts: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": f"{SUPPORT}:{SUPPORT.parents[1]}"}
        for name in ("NOTIFY_SOCKET", "XDG_RUNTIME_DIR"):
            environment.pop(name, None)
        environment.update(options.pop("env", {}))  # type: ignore[call-overload]
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*self._entry, "--config", str(self.config), *arguments],
                stderr=stderr,
                stdout=subprocess.DEVNULL,
                env=environment,
                **options,  # type: ignore[call-overload]
            )
        self._starts.append(self.process)
        return self.process

    def start_ready(self, timeout_s: float = 20.0) -> None:
        self.start()
        self.wait_ready(timeout_s)

    def wait_ready(self, timeout_s: float = 20.0) -> None:
        def is_ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            return "aphrodited: ready on" in self.said()

        wait_until(is_ready, timeout_s, "ready")

    def said(self) -> str:
        return self._stderr.read_text()

    def log(self, program: str) -> str:
        path = self.paths.log(program)
        return path.read_text() if path.exists() else ""

    @property
    def port(self) -> int:
        return int(self.said().split("127.0.0.1:")[1].split()[0].strip(":;,."))

    def ask(self, path: str = "/") -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def pids(self) -> dict[str, int]:
        return {info.name: info.pid for info in self.client.processes()}

    def pid(self, prefix: str, *, other_than: int = 0) -> int:
        """The program's process, once there is one (other than that one): never 0, which kill(2) takes for all."""
        found: list[int] = []

        def is_there() -> bool:
            found[:] = [pid for name, pid in self.pids().items() if name.startswith(prefix)]
            return bool(found) and found[0] not in (0, other_than)

        wait_until(is_there, what=f"a process of {prefix}")
        return found[0]

    def deaths(self, prefix: str = "") -> list[Death]:
        return [e for e in self.ledger.read() if isinstance(e, Death) and e.program.startswith(prefix)]

    def state(self, program: str) -> ProgramState | None:
        return read_program_state(self.paths.program_state(program))

    def behave(self, program: str, *words: str) -> None:
        """What the pretending worker does from its next life on."""
        path = self.paths.state_dir / "behaviour" / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(words))

    def terminate(self, timeout_s: float = 20.0) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """End everything at once: the supervisor's children die with it, and theirs are found by their mark."""
        marked = {pid for start in self._starts for pid in children_of(start.pid)}
        for start in self._starts:
            if start.poll() is None:
                start.kill()
            start.wait(10)
        end_leftovers(self.paths)
        wait_until(lambda: not any(is_alive(pid) for pid in marked), 10, f"end of {marked}")
        shutil.rmtree(self.folder)


def is_alive(pid: int) -> bool:
    return process_state(pid) not in (None, "Z", "X")


def children_of(pid: int) -> list[int]:
    """Its children now, by the kernel's list."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]
