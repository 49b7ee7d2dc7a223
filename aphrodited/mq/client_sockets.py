"""A client's ZeroMQ context and the sockets in it, which end together, also when nobody ends them.

A context waits for its sockets to be closed, and pyzmq's knows them by weak references, which the garbage collector clears
before it collects either: the context of a client that was dropped unclosed, its event loop gone, would wait forever.
"""

from __future__ import annotations

import weakref

import zmq


class ClientSockets:
    """owner: whoever closes it; if the owner is collected, or the process ends, before that, it is closed then."""

    def __init__(self, owner: object) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._end = weakref.finalize(owner, _end, self._context, self._sockets)

    def open(self, socket_type: zmq.SocketType) -> zmq.Socket[bytes]:
        """A socket that lingers for nothing. Whoever has it may close it earlier."""
        socket: zmq.Socket[bytes] = self._context.socket(socket_type)
        socket.setsockopt(zmq.LINGER, 0)
        self._add(socket)
        return socket

    def monitor(self, socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
        """What tells of so many kinds of events of one of them."""
        monitor: zmq.Socket[bytes] = socket.get_monitor_socket(events)
        self._add(monitor)
        return monitor

    def close(self) -> None:
        """Close what is still open, then the context. Idempotent."""
        self._end()

    def _add(self, socket: zmq.Socket[bytes]) -> None:
        self._sockets[:] = [known for known in self._sockets if not known.closed]
        self._sockets.append(socket)


def _end(context: zmq.Context[zmq.Socket[bytes]], sockets: list[zmq.Socket[bytes]]) -> None:
    for socket in sockets:
        socket.close()
    context.term()
