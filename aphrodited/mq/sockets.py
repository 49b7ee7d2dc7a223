"""The four sockets an engine binds, and their options. Knows no message."""

from __future__ import annotations

import zmq

from aphrodited.config.schema import MqConfig
from aphrodited.mq.endpoints import Generation

MAX_PENDING_CONNECTIONS = 256
HEARTBEAT_HWM = 16
DATA_HWM = 256


class EngineSockets:
    """Bound on construction, before the generation is announced; closed by `close`."""

    def __init__(self, generation: Generation, config: MqConfig) -> None:
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        try:
            self.input = self._bind(generation, "input", zmq.PULL, config.input_hwm, config)
            self.output = self._bind(generation, "output", zmq.ROUTER, config.output_hwm, config)
            self.health = self._bind(generation, "health", zmq.PUB, HEARTBEAT_HWM, config)
            self.data = self._bind(generation, "data", zmq.ROUTER, DATA_HWM, config)
        except BaseException:
            self.close(linger_s=0)
            raise

    def _bind(
        self, generation: Generation, kind: str, socket_type: zmq.SocketType, hwm: int, config: MqConfig
    ) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(socket_type)
        self._sockets.append(socket)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, config.max_message_size)
        socket.setsockopt(zmq.BACKLOG, MAX_PENDING_CONNECTIONS)
        socket.set_hwm(hwm)
        if socket_type == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # say so when a client cannot be reached
        socket.bind(generation.endpoint(kind))
        return socket

    def close(self, *, linger_s: float) -> None:
        """Close all; last words on output may take up to `linger_s` to leave."""
        for socket in self._sockets:
            socket.close(linger=int(linger_s * 1000) if socket.type == zmq.ROUTER else 0)
        self._context.term()
