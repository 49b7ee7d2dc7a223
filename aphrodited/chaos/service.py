"""Plays systemd for one daemon: holds its listening socket, starts it again when it ends, kills it when it is silent.

The port stays open from beginning to end, so that who connects while there is no daemon waits for the next one. Knows
no workload and no reason why a daemon ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aphrodited.config.loader import daemon_paths, load_config, read_effective
from aphrodited.config.schema import Config
from aphrodited.health.states import State
from aphrodited.health.status import DaemonStatus, read_status
from aphrodited.supervision.programs import stop_timeout_s

HOST = "127.0.0.1"
BACKLOG = 4096
RESTART_S = 0.1
POLL_S = 0.02
READY_TIMEOUT_S = 180.0


class ServiceError(Exception):
    """The daemon does not do what its service needs, for people."""


class Service:
    """One daemon, in as many lives as it takes. `start` it in a running event loop, and `stop` it."""

    def __init__(self, config_file: Path, *, watchdog_s: float) -> None:
        self.config_file = config_file
        self.config: Config = load_config(config_file)
        self.paths = daemon_paths(self.config)
        self.num_starts = 0
        self.num_silences = 0
        self.pid = 0
        self._watchdog_s = watchdog_s
        self._listener = socket.create_server((HOST, 0), backlog=BACKLOG)
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._notify_path = config_file.parent / "notify"
        self._notify.bind(str(self._notify_path))
        self._log = (config_file.parent / "daemon.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._heard_at_s = 0.0

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def start(self) -> None:
        self._spawn()
        self._keeper = asyncio.create_task(self._keep())

    def check(self) -> None:
        """Raises ServiceError if nobody keeps the daemon any more."""
        if self._keeper is not None and self._keeper.done() and (error := self._keeper.exception()):
            raise ServiceError(f"the daemon is kept no more: {error}") from error

    async def stop(self) -> None:
        """End the daemon, with SIGTERM and if that takes too long with SIGKILL, and close everything. Idempotent."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM)
            give_up_at_s = time.monotonic() + stop_timeout_s(self.config) + 10
            while self._process.poll() is None:
                if time.monotonic() > give_up_at_s:
                    self._process.kill()
                await asyncio.sleep(POLL_S)
        for resource in (self._listener, self._notify, self._log):
            resource.close()
        self._notify_path.unlink(missing_ok=True)

    def status(self) -> DaemonStatus:
        effective = self.paths.effective_config
        return read_status(read_effective(effective) if effective.exists() else self.config, self.paths)

    async def wait_settled(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when every process serves or waits to. Raises ServiceError with what does not, at once if it is parked."""
        give_up_at_s = time.monotonic() + timeout_s
        while True:
            status = await asyncio.to_thread(self.status)
            late = [p for p in status.processes if p.state not in (State.READY, State.STANDBY)]
            if not late:
                return
            self.check()
            is_hopeless = any(process.state is State.PARKED for process in late)
            if is_hopeless or time.monotonic() > give_up_at_s:
                what = ", ".join(f"{process.name} is {process.state} {process.reason}".strip() for process in late)
                raise ServiceError(f"the daemon does not settle: {what}")
            await asyncio.sleep(0.2)

    def _spawn(self) -> None:
        self._heard_at_s = time.monotonic()
        listen_fd = self._listener.fileno()
        daemon = [sys.executable, "-m", "aphrodited.cli.aphrodited", "--config", str(self.config_file)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "aphrodited.chaos.activated", str(listen_fd), *daemon],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(listen_fd,),
            env={
                **os.environ,
                "NOTIFY_SOCKET": str(self._notify_path),
                "WATCHDOG_USEC": str(int(self._watchdog_s * 1e6)),
            },
        )
        self.pid = self._process.pid
        self.num_starts += 1

    async def _keep(self) -> None:
        """Watchdog and Restart= of a unit."""
        assert self._process is not None
        while True:
            await asyncio.sleep(POLL_S)
            with contextlib.suppress(BlockingIOError):
                while self._notify.recv(4096):
                    self._heard_at_s = time.monotonic()
            if self._process.poll() is not None:
                await asyncio.sleep(RESTART_S)
                self._spawn()
            elif time.monotonic() - self._heard_at_s > self._watchdog_s:
                self.num_silences += 1
                self._process.kill()
                self._process.wait()


@asynccontextmanager
async def running(config_file: Path, *, watchdog_s: float) -> AsyncIterator[Service]:
    """A service whose daemon serves with everything that is configured; afterwards nothing of it is left."""
    service = Service(config_file, watchdog_s=watchdog_s)
    try:
        service.start()
        await service.wait_settled()
        yield service
    finally:
        await service.stop()
