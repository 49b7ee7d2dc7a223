"""News of engines: told apart from the ledger's lines and published to whoever listens.

A subscriber that is slow or absent misses them: they are hints, and every fact can be had elsewhere. Publishing
never blocks. Knows no verdict of its own.
"""

from __future__ import annotations

import zmq

from aphrodited.mq.codec import encode
from aphrodited.mq.messages import EngineEvent
from aphrodited.supervision.ledger import Ledger, LedgerEntry


class EventPublisher:
    """The events socket, PUB, bound here. One thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 200)  # ms: the last news may still go out
        self._socket.bind(endpoint)

    def publish(self, event: EngineEvent) -> None:
        self._socket.send(encode(event), zmq.DONTWAIT)  # a PUB drops for a full subscriber, it does not refuse

    def close(self) -> None:
        self._socket.close()


class LedgerTail:
    """The ledger's lines that were not there at the last look. What is there at the start is no news."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._changed_at_ns = ledger.changed_at_ns()
        self.entries = ledger.read()

    def news(self) -> list[LedgerEntry]:
        """New entries, oldest first. One stat if nothing was written; lines may come out of order of time."""
        changed_at_ns = self._ledger.changed_at_ns()
        if changed_at_ns == self._changed_at_ns:
            return []
        self._changed_at_ns = changed_at_ns
        known = set(self.entries)
        self.entries = self._ledger.read()
        return [entry for entry in self.entries if entry not in known]
