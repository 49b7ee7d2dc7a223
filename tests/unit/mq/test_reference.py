"""Tests of aphrodited.mq.reference: docs/protocol.md is current, and complete."""

from __future__ import annotations

import inspect
from pathlib import Path

import msgspec
import pytest

from aphrodited.mq import messages, reference
from aphrodited.mq.messages import PROTOCOL_VERSION, StepOutputs, Submit
from aphrodited.mq.reference import CONVERSATIONS, PAGE, SOCKETS, Step, page
from aphrodited.mq.states import CLIENT_TRANSITIONS, CONNECTION_TRANSITIONS

ROOT = Path(__file__).parents[3]
MESSAGES = [
    kind
    for kind in vars(messages).values()
    if inspect.isclass(kind) and issubclass(kind, msgspec.Struct) and kind.__module__ == messages.__name__
]


def test_the_page_is_current() -> None:
    assert (ROOT / PAGE).read_text() == page(), "run: python -m aphrodited.mq.reference"


def test_every_message_is_on_one_socket_and_on_the_page() -> None:
    for kind in MESSAGES:
        on = [s.name for s in SOCKETS if kind in (*reference._members(s.up), *reference._members(s.down))]
        assert len(on) == 1, kind
        assert f"**{kind.__name__}** (tag `" in page()
        for field in msgspec.structs.fields(kind):
            assert f"`{field.name}`" in page()


def test_every_message_is_part_of_a_conversation() -> None:
    told = {step.message for steps in CONVERSATIONS.values() for step in steps}
    assert {*MESSAGES} - told == set()


def test_every_transition_is_drawn() -> None:
    for transitions in (CLIENT_TRANSITIONS, CONNECTION_TRANSITIONS):
        for (state, event), following in transitions.items():
            assert f"    {state} --> {following}: {event}\n" in page()


def test_whatever_is_inside_a_message_is_described() -> None:
    for kind in MESSAGES:
        for field in msgspec.structs.fields(kind):
            for part in _structs_in(field.type):
                assert f"**{part.__name__}**" in page()


def _structs_in(hint: object) -> list[type]:
    arguments = getattr(hint, "__args__", ())
    if isinstance(hint, type) and not arguments:
        return [hint] if issubclass(hint, msgspec.Struct) else []
    return [part for argument in arguments for part in _structs_in(argument)]


def test_an_arrow_against_the_way_of_its_socket_is_found() -> None:
    assert reference._socket_of(Step("client", Submit)) == "input"
    with pytest.raises(LookupError):
        reference._socket_of(Step("client", StepOutputs))


def test_the_version_is_told() -> None:
    assert f"version {PROTOCOL_VERSION}" in page()
