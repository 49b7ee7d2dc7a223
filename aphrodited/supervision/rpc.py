"""Talks to the supervisor of a running daemon over its unix socket: list, start, stop, restart, signal.

XML-RPC from the standard library alone, so that the operator's command and the monitor stay light. Knows no
policy and keeps no connection: each call opens its own and has a time limit.
"""

from __future__ import annotations

import http.client
import signal
import socket
import xmlrpc.client
from pathlib import Path
from typing import Any

import msgspec

from aphrodited.errors import AphroditeError
from aphrodited.supervision.programs import full_name


class SupervisorDownError(AphroditeError):
    """Nothing answers on the supervisor's socket: the daemon is not running, or did not answer in time."""

    code = "supervisor_down"
    http_status = 503


class SupervisorRefusedError(AphroditeError):
    """The supervisor answered no: unknown program, not running, already started, shutting down."""

    code = "supervisor_refused"
    http_status = 409

    def __init__(self, message: str, fault_code: int) -> None:
        super().__init__(message)
        self.fault_code = fault_code


class ProcessInfo(msgspec.Struct, frozen=True):
    """One program as its supervisor sees it.

    statename: STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED, FATAL or UNKNOWN.  pid: 0 if there is none.
    started_at_s, stopped_at_s: seconds since the epoch, 0 if never.  uptime_s: of the running process, else 0.
    exitstatus: of the last exit, -1 for a signal, 0 if it never ended.  spawnerr: why it could not be started.
    """

    name: str
    statename: str
    pid: int
    started_at_s: int
    stopped_at_s: int
    uptime_s: int
    exitstatus: int
    spawnerr: str


class SupervisorClient:
    """Calls to one daemon's supervisor.

    Every method raises SupervisorDownError if nobody answers within the time limit, and SupervisorRefusedError
    with a sentence if the supervisor declines.
    """

    def __init__(self, socket_path: Path, *, timeout_s: float = 5.0) -> None:
        self._socket_path = socket_path
        self._timeout_s = timeout_s

    def processes(self) -> list[ProcessInfo]:
        """All programs, in the order in which they are started."""
        return [_process_info(raw) for raw in self._call("getAllProcessInfo")]

    def start(self, name: str) -> None:
        """Start a program that is stopped; returns when its process exists."""
        self._call("startProcess", full_name(name), True)

    def stop(self, name: str, *, timeout_s: float = 120.0) -> None:
        """Stop a program for good (until `start`); returns when its process is gone."""
        self._call("stopProcess", full_name(name), True, timeout_s=timeout_s)

    def restart(self, name: str, *, timeout_s: float = 120.0) -> None:
        """Stop the program if it runs, then start it."""
        try:
            self.stop(name, timeout_s=timeout_s)
        except SupervisorRefusedError as error:
            if error.fault_code != NOT_RUNNING:
                raise
        self.start(name)

    def pid(self) -> int:
        """The supervisor's own process."""
        return int(self._call("getPID"))

    def shutdown(self) -> None:
        """Ask the whole daemon to stop; returns before it has."""
        self._call("shutdown")

    def signal(self, name: str, number: int) -> None:
        """Send a signal to the program's process."""
        self._call("signalProcess", full_name(name), signal.Signals(number).name.removeprefix("SIG"))

    def _call(self, method: str, *args: Any, timeout_s: float | None = None) -> Any:
        transport = _UnixTransport(self._socket_path, timeout_s or self._timeout_s)
        try:
            with xmlrpc.client.ServerProxy("http://localhost/RPC2", transport=transport) as proxy:
                return getattr(proxy.supervisor, method)(*args)
        except xmlrpc.client.Fault as fault:
            raise SupervisorRefusedError(_refusal(fault, args), fault.faultCode) from fault
        except (OSError, http.client.HTTPException, xmlrpc.client.Error) as error:
            raise SupervisorDownError(
                f"no answer from the daemon on {self._socket_path}: {error or type(error).__name__}; is it running?"
            ) from error


ALREADY_RUNNING = 60
NOT_RUNNING = 70
_SENTENCES = {  # fault codes of supervisor.xmlrpc.Faults, and what they say of a program
    6: "the daemon is stopping",
    10: "there is no program {name}",
    20: "program {name} has no file to run",
    21: "program {name} has a file that cannot be run",
    40: "program {name} ended while it started",
    50: "program {name} could not be started",
    ALREADY_RUNNING: "program {name} is running already",
    NOT_RUNNING: "program {name} is not running",
}


def _refusal(fault: xmlrpc.client.Fault, args: tuple[Any, ...]) -> str:
    sentence = _SENTENCES.get(fault.faultCode)
    return sentence.format(name=args[0].partition(":")[2] if args else "") if sentence else str(fault.faultString)


def _process_info(raw: dict[str, Any]) -> ProcessInfo:
    return ProcessInfo(
        name=raw["name"],
        statename=raw["statename"],
        pid=raw["pid"],
        started_at_s=raw["start"],
        stopped_at_s=raw["stop"],
        uptime_s=max(0, raw["now"] - raw["start"]) if raw["pid"] else 0,
        exitstatus=raw["exitstatus"],
        spawnerr=raw["spawnerr"],
    )


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, socket_path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._socket_path = socket_path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._socket_path))


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, socket_path: Path, timeout_s: float) -> None:
        super().__init__()
        self._socket_path = socket_path
        self._timeout_s = timeout_s

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        connection = _UnixConnection(self._socket_path, self._timeout_s)
        self._connection = host, connection  # what close() closes
        return connection
