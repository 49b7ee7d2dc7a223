"""The sockets of one connection to an engine, client side: made, pumped, closed together. Knows no message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from aphrodited.errors import EngineError, QueueFullError, RequestError
from aphrodited.mq.client_sockets import ClientSockets
from aphrodited.mq.pump import SocketPump
from aphrodited.paths import ModelPaths

NEVER_RECONNECT_MS = 3_600_000
"""Not -1: then libzmq throws away what has arrived and was not read yet (seen: 99 of 5000 frames were left).
A lost connection is never taken up again; its owner makes a new one."""

FAREWELL_MS = 100
"""How long closing may take to get the last frame out, at most."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Frames queued towards the engine and from it, and the largest frame in bytes."""

    input_hwm: int
    output_hwm: int
    max_message_size: int


class EngineLinks:
    """Sockets to one generation: input (PUSH), output and data (DEALER). Every send either succeeds or raises at once."""

    def __init__(
        self, sockets: ClientSockets, paths: ModelPaths, generation: int, name: str, limits: LinkLimits
    ) -> None:
        self._limits = limits
        self._pumps: list[SocketPump] = []
        self._sockets: list[zmq.Socket[bytes]] = []
        self._input = self._open(sockets, zmq.PUSH)
        self._output = self._open(sockets, zmq.DEALER)
        self._data = self._open(sockets, zmq.DEALER)
        self._output.setsockopt(zmq.IDENTITY, name.encode())
        self._events = sockets.monitor(self._output, zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
        for kind, socket in (("input", self._input), ("output", self._output), ("data", self._data)):
            socket.connect(paths.endpoint(generation, kind))

    def _open(self, sockets: ClientSockets, socket_type: zmq.SocketType) -> zmq.Socket[bytes]:
        socket = sockets.open(socket_type)
        socket.setsockopt(zmq.RECONNECT_IVL, NEVER_RECONNECT_MS)
        socket.setsockopt(zmq.MAXMSGSIZE, self._limits.max_message_size)
        socket.setsockopt(zmq.SNDHWM, self._limits.input_hwm)
        socket.setsockopt(zmq.RCVHWM, self._limits.output_hwm)
        self._sockets.append(socket)
        return socket

    def start(
        self,
        on_output: Callable[[bytes], None],
        on_data: Callable[[bytes], None],
        on_disconnected: Callable[[], None],
        on_refused: Callable[[], None],
    ) -> None:
        """Begin to read, on the running event loop.

        on_disconnected: output was connected and is no more; everything that came before has been read from the wire
        and can be drained.  on_refused: nobody listens there.
        """

        def on_event(frame: bytes) -> None:
            if len(frame) != 6:
                return  # the second part, an address; the first is a 16-bit event and a 32-bit value
            if int(parse_monitor_message([frame, b""])["event"]) == zmq.EVENT_DISCONNECTED:
                on_disconnected()
            else:
                on_refused()

        self._output_pump = SocketPump(self._output, on_output)
        self._data_pump = SocketPump(self._data, on_data)
        self._pumps = [self._output_pump, self._data_pump, SocketPump(self._events, on_event)]

    def drain_output(self) -> None:
        self._output_pump.drain()

    def send_input(self, frame: bytes) -> None:
        """Raises QueueFullError, and RequestError if the engine would not take a frame of that size."""
        if len(frame) > self._limits.max_message_size:
            raise RequestError(
                f"the request has {len(frame)} bytes and the engine takes {self._limits.max_message_size}",
                code="request_too_large",
            )
        try:
            self._input.send(frame, zmq.DONTWAIT)
        except zmq.Again:
            raise QueueFullError("the queue towards the engine is full: try again later") from None

    def send_output(self, frame: bytes) -> None:
        self._send(self._output, frame)
        self._output_pump.kick()

    def send_data(self, frame: bytes) -> None:
        self._send(self._data, frame)
        self._data_pump.kick()

    def _send(self, socket: zmq.Socket[bytes], frame: bytes) -> None:
        try:
            socket.send(frame, zmq.DONTWAIT)
        except zmq.Again:
            raise EngineError("the engine has not read its questions for a long time: try again later") from None

    def close(self, *, farewell: bytes | None = None) -> None:
        """Stop reading, say `farewell` on output if there is one, and close. Idempotent."""
        for pump in self._pumps:
            pump.close()
        if farewell is not None and not self._output.closed:
            try:
                self._output.send(farewell, zmq.DONTWAIT)
                self._output.setsockopt(zmq.LINGER, FAREWELL_MS)
            except zmq.Again:
                pass  # an engine that reads nothing learns of the departure when it cannot reach the client
        if not self._output.closed:
            self._output.disable_monitor()
        for socket in (*self._sockets, self._events):
            socket.close()
