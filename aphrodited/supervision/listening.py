"""The public listening socket: bound here once, or taken over from systemd, and inherited by every API worker.

It stays open while workers come and go, so the port never closes. Knows nothing of HTTP.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import MutableMapping

from aphrodited.config.checks import is_loopback
from aphrodited.config.schema import ApiConfig
from aphrodited.errors import AphroditeError, ConfigError

BACKLOG = 1024
FIRST_PASSED_FD = 3  # sd_listen_fds(3)


class PortInUseError(AphroditeError):
    """Somebody else listens on the configured port."""


def open_listener(api: ApiConfig, environment: MutableMapping[str, str], *, retry_s: float = 0.0) -> socket.socket:
    """systemd's socket if it passed one, else one bound to api.host and api.port. Children inherit it.

    retry_s: how long to go on trying if the port is taken, when its last owner may be just about to end.
    Raises ConfigError (host or passed socket unusable), PortInUseError.
    """
    listener = _adopt(environment) or _bind(api, retry_s)
    listener.setblocking(False)
    listener.set_inheritable(True)
    return listener


def address_of(listener: socket.socket) -> tuple[str, int]:
    """Host and port as they came to be; port 0 in the configuration has become a real one."""
    host, port = listener.getsockname()[:2]
    return str(host), int(port)


def url_of(host: str, port: int) -> str:
    """An address a person on this machine can use."""
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_exposure(api: ApiConfig, host: str) -> None:
    """Raises ConfigError if everybody could use the port without a key and nobody said that this is meant."""
    if not is_loopback(host.partition("%")[0]) and api.keys_file is None and not api.allow_unauthenticated:
        raise ConfigError(
            f"api: the socket listens on {host}, beyond this machine, without API keys; set api.keys_file, or"
            " api.allow_unauthenticated to true if that is meant"
        )


def _adopt(environment: MutableMapping[str, str]) -> socket.socket | None:
    """LISTEN_FDS is taken out of the environment whoever it was meant for: no child may find it."""
    pid = environment.pop("LISTEN_PID", "")
    num_fds = environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not num_fds.isdigit() or int(num_fds) == 0:
        return None
    if int(num_fds) > 1:
        raise ConfigError(f"systemd passed {num_fds} sockets, the daemon takes one: keep a single ListenStream=")
    listener = socket.socket(fileno=FIRST_PASSED_FD)
    is_stream = listener.type == socket.SOCK_STREAM and listener.family in (socket.AF_INET, socket.AF_INET6)
    if not is_stream or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ConfigError("the socket passed by systemd is not a listening TCP socket: use ListenStream=ADDRESS:PORT")
    return listener


def _bind(api: ApiConfig, retry_s: float) -> socket.socket:
    try:
        found = socket.getaddrinfo(api.host, api.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"api.host: {api.host!r} is no address of this machine: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    give_up_at_s = time.monotonic() + retry_s
    while True:
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"api: cannot listen on {api.host} port {api.port}: {error.strerror}") from None
        if time.monotonic() >= give_up_at_s:
            raise PortInUseError(
                f"port {api.port} on {api.host} is in use by another program; stop that one or choose another api.port"
                f" (ss -tlnp 'sport = :{api.port}' shows who has it)"
            )
        time.sleep(0.05)
