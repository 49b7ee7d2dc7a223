"""Bytes to messages and back: one msgpack encoder, and one decoder for each direction of each socket.

A decoder accepts the messages of its socket and nothing else; whatever it refuses is a ProtocolError, so that
no stranger's bytes reach further than this module. Knows no socket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from aphrodited.errors import ProtocolError
from aphrodited.mq.messages import (
    DataReply,
    DataRequest,
    EngineEvent,
    Heartbeat,
    InputMessage,
    OutputMessage,
    WayMessage,
)

Message = TypeVar("Message")

encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode


def _decoder(kind: str, decoder: msgspec.msgpack.Decoder[Message]) -> Callable[[bytes], Message]:
    decode = decoder.decode

    def decode_frame(frame: bytes) -> Message:
        try:
            return decode(frame)
        except (msgspec.MsgspecError, RecursionError) as error:  # RecursionError: fields nested without end
            raise ProtocolError(f"not a message of the {kind} socket: {error}") from error

    return decode_frame


decode_input = _decoder("input", msgspec.msgpack.Decoder[InputMessage](InputMessage))
decode_output = _decoder("output", msgspec.msgpack.Decoder[OutputMessage](OutputMessage))
decode_way = _decoder("output", msgspec.msgpack.Decoder[WayMessage](WayMessage))
decode_heartbeat = _decoder("health", msgspec.msgpack.Decoder(Heartbeat))
decode_data_request = _decoder("data", msgspec.msgpack.Decoder[DataRequest](DataRequest))
decode_data_reply = _decoder("data", msgspec.msgpack.Decoder[DataReply](DataReply))
decode_event = _decoder("events", msgspec.msgpack.Decoder(EngineEvent))
