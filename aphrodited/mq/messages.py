"""Every message that crosses a ZeroMQ socket.

    socket   engine to client                            client to engine
    input                                                Submit, AbortRequest
    output   Attached, StepOutputs, RequestFailed,       Attach, Detach
             Dropped, HandingOver, EngineDead
    health   Heartbeat
    data     HelloReply, StatsReply                      Hello, StatsRequest
    events   EngineEvent (from the monitor)

Messages are positional (`array_like`): new fields go last, with a default, and PROTOCOL_VERSION goes up.
Knows no socket and no engine.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from aphrodited.interfaces import EngineStats, ModelFacts
from aphrodited.outputs import TokenOutput
from aphrodited.request import EncodeRequest, GenerateRequest

PROTOCOL_VERSION = 4

NUMBER_BITS = 32
"""An engine's key is (client slot << NUMBER_BITS) | number: outputs need no translation on their way back."""

NUMBER_MASK = (1 << NUMBER_BITS) - 1


# -- input: client to engine ------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, array_like=True, tag="submit"):
    """A request under the client's own number, which it never uses twice in a generation."""

    client: str
    number: int
    request: GenerateRequest | EncodeRequest


class AbortRequest(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    client: str
    number: int


InputMessage = Submit | AbortRequest


# -- output: engine to client -----------------------------------------------------------------------------------


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="attach"):
    """Sent by a client on its output socket, so that the engine learns a way back to it."""

    client: str
    pid: int
    start_ticks: int


class Detach(msgspec.Struct, frozen=True, array_like=True, tag="detach"):
    """Sent by a client that leaves: whatever it still has in the engine is aborted, without an answer."""

    client: str


WayMessage = Attach | Detach


class Attached(msgspec.Struct, frozen=True, array_like=True, tag="attached"):
    """The way back works. Frames to this client are numbered from `next_frame` on."""

    generation: int
    next_frame: int


class StepOutputs(msgspec.Struct, frozen=True, array_like=True, tag="step"):
    """One step's deltas for one client. A gap in `frame` means that something was lost."""

    frame: int
    outputs: list[TokenOutput]


class RequestFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """One request was refused or lost; it ends here."""

    frame: int
    number: int
    code: str
    message: str
    http_status: int = 400
    param: str | None = None


class Dropped(msgspec.Struct, frozen=True, array_like=True, tag="dropped"):
    """Frames to this client were lost, so every request it has sent under this name has ended.

    The engine has forgotten the client: it attaches again under a new name.
    """

    reason: str


class HandingOver(msgspec.Struct, frozen=True, array_like=True, tag="handing_over"):
    """The engine stops: it refuses new requests, which are its successor's, and goes on with those it has."""


class EngineDead(msgspec.Struct, frozen=True, array_like=True, tag="dead"):
    """The engine's last words: every request in it has ended."""

    cause: str


OutputMessage = Attached | StepOutputs | RequestFailed | Dropped | HandingOver | EngineDead


# -- health: engine to whoever listens --------------------------------------------------------------------------


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """Load, for routing and display. Silence is never a verdict."""

    generation: int
    stats: EngineStats


# -- data: facts and questions ----------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    protocol_version: int
    client: str


class HelloReply(msgspec.Struct, frozen=True, array_like=True, tag="hello_reply"):
    """`accepted` is false if the versions differ; `reason` then says so."""

    protocol_version: int
    accepted: bool
    reason: str
    generation: int
    pid: int
    start_ticks: int
    facts: ModelFacts | None


class StatsRequest(msgspec.Struct, frozen=True, array_like=True, tag="stats"):
    """Ask for statistics; with `log`, the engine writes them to its log too."""

    log: bool = False


class StatsReply(msgspec.Struct, frozen=True, array_like=True, tag="stats_reply"):
    generation: int
    stats: EngineStats


DataRequest = Hello | StatsRequest
DataReply = HelloReply | StatsReply


# -- events: monitor to whoever listens -------------------------------------------------------------------------


class EventKind(StrEnum):
    ENGINE_READY = "ENGINE_READY"
    ENGINE_DEAD = "ENGINE_DEAD"
    ENGINE_HANG = "ENGINE_HANG"
    ENGINE_PARKED = "ENGINE_PARKED"


class EngineEvent(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """What happened to an engine, with the cause that a dead one could not tell. A hint, never required."""

    kind: EventKind
    model: str
    generation: int
    pid: int
    cause: str = ""
