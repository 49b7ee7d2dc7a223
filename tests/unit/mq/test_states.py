"""Tests of aphrodited.mq.states."""

from __future__ import annotations

from itertools import product

import pytest

from aphrodited.mq.states import (
    CLIENT_TRANSITIONS,
    CONNECTION_TRANSITIONS,
    ClientEvent,
    ClientState,
    ConnectionEvent,
    ConnectionState,
    InvalidTransition,
    next_state,
)


def test_nothing_leaves_the_last_state() -> None:
    assert ClientState.GONE not in {state for state, _ in CLIENT_TRANSITIONS}
    assert ConnectionState.LOST not in {state for state, _ in CONNECTION_TRANSITIONS}


def test_every_other_state_can_end() -> None:
    for state in (ClientState.ATTACHED, ClientState.DROPPING):
        assert next_state(CLIENT_TRANSITIONS, state, ClientEvent.LEFT) is ClientState.GONE
    for connection in (ConnectionState.ATTACHING, ConnectionState.ATTACHED):
        assert next_state(CONNECTION_TRANSITIONS, connection, ConnectionEvent.ENDED) is ConnectionState.LOST


def test_what_is_not_in_the_table_is_a_bug() -> None:
    for state, event in product(ClientState, ClientEvent):
        if (state, event) not in CLIENT_TRANSITIONS:
            with pytest.raises(InvalidTransition, match=event.name):
                next_state(CLIENT_TRANSITIONS, state, event)
