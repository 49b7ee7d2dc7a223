"""Writes docs/protocol.md out of `mq.messages` and `mq.states`, so that it says what the code does.

`python -m aphrodited.mq.reference` writes it into the working directory; a test compares. What travels in which order
is told by CONVERSATIONS, whose every arrow is checked against SOCKETS when the page is made.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from aphrodited.interfaces import EngineStats, ModelFacts
from aphrodited.mq import messages
from aphrodited.mq.messages import (
    NUMBER_BITS,
    PROTOCOL_VERSION,
    AbortRequest,
    Attach,
    Attached,
    Detach,
    Dropped,
    EngineDead,
    EngineEvent,
    HandingOver,
    Heartbeat,
    Hello,
    HelloReply,
    RequestFailed,
    StatsReply,
    StatsRequest,
    StepOutputs,
    Submit,
)
from aphrodited.mq.states import CLIENT_TRANSITIONS, CONNECTION_TRANSITIONS, ClientState, ConnectionState
from aphrodited.outputs import TokenLogprobs, TokenOutput
from aphrodited.request import EncodeRequest, GenerateRequest
from aphrodited.sampling_params import SamplingParams

PAGE = Path("docs/protocol.md")

Message = type[msgspec.Struct]


class Socket(NamedTuple):
    """bound_by: its type and owner.  down, up: what it carries to the client, and from it."""

    name: str
    bound_by: str
    down: Any
    up: Any


SOCKETS = (
    Socket("input", "engine, PULL", None, messages.InputMessage),
    Socket("output", "engine, ROUTER", messages.OutputMessage, messages.WayMessage),
    Socket("health", "engine, PUB", Heartbeat, None),
    Socket("data", "engine, ROUTER", messages.DataReply, messages.DataRequest),
    Socket("events", "monitor, PUB", EngineEvent, None),
)

PARTS: tuple[Message, ...] = (
    GenerateRequest,
    EncodeRequest,
    SamplingParams,
    TokenOutput,
    TokenLogprobs,
    ModelFacts,
    EngineStats,
)
"""What messages are made of."""


class Step(NamedTuple):
    """One arrow: who sends what, and a word about it; a note if there is no message."""

    sender: typing.Literal["client", "engine", "monitor"]
    message: Message | None
    remark: str = ""


CONVERSATIONS: dict[str, tuple[Step, ...]] = {
    "Attaching": (
        Step("client", Hello, "its protocol version"),
        Step("client", Attach, "its name, pid and start time"),
        Step("engine", HelloReply, "pid, facts about the model"),
        Step("engine", Attached, "the number of the next frame"),
        Step("client", None, "has both answers: it may submit"),
    ),
    "A request, answered": (
        Step("client", Submit, "number 7"),
        Step("engine", StepOutputs, "frame 0: a token of 7"),
        Step("engine", StepOutputs, "frame 1: the last one, with its finish reason"),
    ),
    "A request, refused": (
        Step("client", Submit, "number 8"),
        Step("engine", RequestFailed, "frame 2: why"),
    ),
    "A request, given up": (
        Step("client", Submit, "number 9"),
        Step("engine", StepOutputs, "frame 3"),
        Step("client", AbortRequest, "number 9: it has ended here already"),
        Step("engine", StepOutputs, "frame 4 was on its way: passed over"),
    ),
    "Statistics": (
        Step("client", StatsRequest),
        Step("engine", StatsReply, "between two steps"),
        Step("engine", Heartbeat, "to everybody, by itself"),
    ),
    "A client that reads too slowly": (
        Step("engine", StepOutputs, "frame 5 finds the client's queue full: its sequences are aborted"),
        Step("engine", Dropped, "retried until it is delivered"),
        Step("client", None, "fails its requests, attaches anew under a new name"),
    ),
    "A client that leaves": (Step("client", Detach, "whatever it had in the engine is aborted"),),
    "The engine is stopped, and another one takes over": (
        Step("engine", HandingOver, "sent once; then the model's lock is let go"),
        Step("client", None, "looks for the next generation, and attaches to it beside this one"),
        Step("client", Submit, "number 10 was on its way"),
        Step("engine", RequestFailed, "frame 6: SHUTTING_DOWN, as for whatever is not finished in time"),
        Step("engine", StepOutputs, "frame 7: the last one of what runs"),
        Step("engine", EngineDead, "when all of it has ended"),
    ),
    "The engine fails": (
        Step("engine", EngineDead, "its last words: the cause"),
        Step("client", None, "every request ends with MQEngineDeadError"),
    ),
    "The engine is killed": (
        Step("client", None, "its pidfd of the engine's process becomes readable"),
        Step("engine", StepOutputs, "what was on its way is read until the connection is lost, 50 ms at most"),
        Step("monitor", EngineEvent, "what killed it, if that is known in time"),
        Step("client", None, "every request left ends with MQEngineDeadError"),
    ),
}


def page() -> str:
    """The whole page."""
    blocks = [INTRODUCTION, "## Sockets", _socket_table(), "## Messages"]
    for socket in SOCKETS:
        blocks.append(f"### On {socket.name}")
        for message in (*_members(socket.up), *_members(socket.down)):
            blocks += _message(message, _direction(socket, message))
    blocks.append("### What messages are made of")
    for part in PARTS:
        blocks += _message(part, "")
    blocks += ["## States", *_states()]
    blocks += ["## Conversations", "Client and engine only; the socket of each arrow stands before its message."]
    for title, steps in CONVERSATIONS.items():
        blocks += [f"### {title}", _mermaid(["sequenceDiagram", *_arrows(steps)])]
    return "\n\n".join(blocks) + "\n"


INTRODUCTION = f"""# Protocol

Between an engine's process and its clients, version {PROTOCOL_VERSION}. Written by `python -m aphrodited.mq.reference` from
`aphrodited.mq.messages` and `aphrodited.mq.states`; [architecture.md](architecture.md) says why it is so.

A frame is one message: a msgpack array of the message's tag and its fields in the order below. A field that is missing
at the end has its default. What cannot be decoded, and what does not belong on its socket, is refused and counted;
it never stops anybody. A client whose version differs is refused when it says hello.

A request's number is its client's own; inside the engine its key is the client's slot, shifted left by {NUMBER_BITS} bits, and
the number. Every accepted request ends with exactly one terminal event: a finish reason, a failure, its client's abort,
or the engine's death."""


def _socket_table() -> str:
    def names(union: Any) -> str:
        return ", ".join(member.__name__ for member in _members(union)) or "nothing"

    rows = [(s.name, s.bound_by, names(s.up), names(s.down)) for s in SOCKETS]
    return _table(("socket", "bound by", "from the client", "to the client"), rows)


def _members(union: Any) -> tuple[Message, ...]:
    if union is None:
        return ()
    return typing.get_args(union) if isinstance(union, types.UnionType) else (union,)


def _direction(socket: Socket, message: Message) -> str:
    return "from the client" if message in _members(socket.up) else "to the client"


def _message(message: Message, direction: str) -> list[str]:
    tag = message.__struct_config__.tag
    facts = ", ".join(filter(None, (f"tag `{tag}`" if tag else "", direction)))
    heading = f"**{message.__name__}**" + (f" ({facts})" if facts else "")
    text = inspect.cleandoc(message.__doc__ or "") if "__doc__" in vars(message) else ""
    hints = typing.get_type_hints(message)
    rows = [
        (f"`{field.name}`", _type_name(hints[field.name]), _default(field)) for field in msgspec.structs.fields(message)
    ]
    return [heading, *filter(None, [text]), _table(("field", "type", "default"), rows)]


def _type_name(hint: Any) -> str:
    """`list[TokenOutput]`, `str or null`."""
    if hint is type(None):
        return "null"
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(map(_type_name, typing.get_args(hint)))
    if isinstance(hint, types.GenericAlias):
        inner = ", ".join("..." if argument is ... else _type_name(argument) for argument in typing.get_args(hint))
        return f"{hint.__origin__.__name__}[{inner}]"
    return str(getattr(hint, "__name__", hint))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is msgspec.NODEFAULT:
        return "" if field.default_factory is msgspec.NODEFAULT else "`[]`"
    return f"`{msgspec.json.encode(field.default).decode()}`"


def _states() -> Iterator[str]:
    for kind, transitions in ((ClientState, CLIENT_TRANSITIONS), (ConnectionState, CONNECTION_TRANSITIONS)):
        yield inspect.cleandoc(kind.__doc__ or "")
        yield _mermaid(_state_diagram(kind, transitions))


def _state_diagram(kind: Iterable[StrEnum], transitions: Mapping[tuple[Any, Any], Any]) -> Iterator[str]:
    yield "stateDiagram-v2"
    yield f"[*] --> {next(iter(kind))}"
    for (state, event), following in transitions.items():
        yield f"{state} --> {following}: {event}"
    for last in set(transitions.values()) - {state for state, _ in transitions}:
        yield f"{last} --> [*]"


def _arrows(steps: tuple[Step, ...]) -> Iterator[str]:
    yield "participant client"
    yield "participant engine"
    if any(step.sender == "monitor" for step in steps):
        yield "participant monitor"
    for step in steps:
        if step.message is None:
            yield f"Note over {step.sender}: {step.remark}"
            continue
        receiver = "engine" if step.sender == "client" else "client"
        remark = f": {step.remark}" if step.remark else ""
        yield f"{step.sender}->>{receiver}: {_socket_of(step)}: {step.message.__name__}{remark}"


def _socket_of(step: Step) -> str:
    """The one that carries the message that way. Raises LookupError if there is none."""
    for socket in SOCKETS:
        if step.message in _members(socket.up if step.sender == "client" else socket.down):
            return socket.name
    raise LookupError(f"no socket carries {step.message} from the {step.sender}")


def _mermaid(lines: Iterable[str]) -> str:
    head, *body = lines
    return "\n".join(["```mermaid", head, *(f"    {line}" for line in body), "```"])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(re.sub(r"\|", r"\\|", cell) for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
