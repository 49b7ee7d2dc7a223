"""Speaks sd_notify(3) from the main process. Without a service manager every method does nothing.

Knows the protocol and not when to say what.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping


class ServiceManager:
    """The service manager that started us, if one did.

    watchdog_s: the longest silence it allows, 0 if it does not watch.  Datagrams are sent without waiting: a
    manager that does not read loses them, and so does nobody else.
    """

    def __init__(self, address: str | None, watchdog_s: float = 0.0) -> None:
        self.watchdog_s = watchdog_s
        self._last_status = ""
        self._address = "\0" + address[1:] if address and address.startswith("@") else address

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """Takes what concerns us out of the environment, so that no child speaks in our name."""
        address = environment.pop("NOTIFY_SOCKET", None)
        watchdog_usec = environment.pop("WATCHDOG_USEC", "0")
        watchdog_pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        is_watched = watchdog_pid == str(os.getpid()) and watchdog_usec.isdigit()
        return cls(address, int(watchdog_usec) / 1e6 if is_watched else 0.0)

    @property
    def is_present(self) -> bool:
        return bool(self._address)

    def ready(self, status: str) -> None:
        self._last_status = status
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Call `reloaded` when that is over."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        self._send("READY=1")

    def stopping(self, status: str) -> None:
        self._last_status = status
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Says it once; saying the same again sends nothing."""
        if status != self._last_status:
            self._last_status = status
            self._send(f"STATUS={status}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Ask that the start or stop under way may last so much longer from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        message = "\n".join(line.replace("\n", " ") for line in lines).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
            try:
                sender.sendto(message, self._address)
            except OSError:
                # A manager that is gone or does not read: its own watchdog deals with that.
                return
