"""Listens to the monitor's events for the cause of a death that the dead could not tell. Hints: never waited for."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from aphrodited.errors import ProtocolError
from aphrodited.mq.client_sockets import ClientSockets
from aphrodited.mq.codec import decode_event
from aphrodited.mq.messages import EngineEvent, EventKind
from aphrodited.mq.pump import SocketPump
from aphrodited.mq.refusals import Refusals

RECONNECT_MS = 1000
CAUSES = frozenset({EventKind.ENGINE_DEAD, EventKind.ENGINE_HANG})


class DeathHints:
    """Calls `on_hint` with each event that says how an engine ended, on the running event loop."""

    def __init__(
        self,
        sockets: ClientSockets,
        endpoint: str,
        on_hint: Callable[[EngineEvent], None],
        refusals: Refusals,
    ) -> None:
        self._on_hint = on_hint
        self._refusals = refusals
        self._socket = sockets.open(zmq.SUB)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._socket.setsockopt(zmq.RCVHWM, 64)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(endpoint)
        self._pump = SocketPump(self._socket, self._on_frame)

    def _on_frame(self, frame: bytes) -> None:
        try:
            event = decode_event(frame)
        except ProtocolError as error:
            self._refusals.count("bad_frame", reason=str(error))
            return
        if event.kind in CAUSES and event.cause:
            self._on_hint(event)

    def close(self) -> None:
        self._pump.close()
        self._socket.close()
