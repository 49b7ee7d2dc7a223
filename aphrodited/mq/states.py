"""The two state machines of the protocol, as tables: a client in the engine's eyes, a connection in the client's.

Everything else asks `next_state`; docs/protocol.md is drawn from these tables. Knows no socket and no message.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


class ClientState(StrEnum):
    """A client, as the engine sees it."""

    ATTACHED = "attached"  # frames reach it, numbered
    DROPPING = "dropping"  # a frame to it was lost: its sequences are aborted, and it is yet to be told so
    GONE = "gone"  # its sequences are aborted, and nothing is kept


class ClientEvent(StrEnum):
    FRAME_LOST = "a frame found its queue full"
    TOLD = "Dropped was delivered"
    LEFT = "Detach, its process ended, or it cannot be reached"


CLIENT_TRANSITIONS: dict[tuple[ClientState, ClientEvent], ClientState] = {
    (ClientState.ATTACHED, ClientEvent.FRAME_LOST): ClientState.DROPPING,
    (ClientState.ATTACHED, ClientEvent.LEFT): ClientState.GONE,
    (ClientState.DROPPING, ClientEvent.TOLD): ClientState.GONE,
    (ClientState.DROPPING, ClientEvent.LEFT): ClientState.GONE,
}


class ConnectionState(StrEnum):
    """One client's connection to one generation of an engine."""

    ATTACHING = "attaching"  # Hello and Attach were sent; both answers are awaited
    ATTACHED = "attached"  # requests go in, frames come out
    LOST = "lost"  # every request has had its terminal event; the sockets are closed


class ConnectionEvent(StrEnum):
    ANSWERED = "HelloReply and Attached have come"
    ENDED = "closed, refused, dropped, broken, or the engine died"


CONNECTION_TRANSITIONS: dict[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (ConnectionState.ATTACHING, ConnectionEvent.ANSWERED): ConnectionState.ATTACHED,
    (ConnectionState.ATTACHING, ConnectionEvent.ENDED): ConnectionState.LOST,
    (ConnectionState.ATTACHED, ConnectionEvent.ENDED): ConnectionState.LOST,
}


class InvalidTransition(RuntimeError):
    """A bug: something happened that cannot happen in that state."""


def next_state(transitions: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    try:
        return transitions[state, event]
    except KeyError:
        raise InvalidTransition(f"{event.name} in state {state}") from None
