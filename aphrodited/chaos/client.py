"""Sends one request of a chaos run over HTTP and says how it ended. Knows no fault, and judges no content.

    answered     to its end, well formed
    failed       the documented error, plain or as the last event
    broken       the connection was lost
    shapeless    something that docs/api.md does not describe
    hung         no end within the bound
    left         the client went away, as its case says
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp
import msgspec

from aphrodited.chaos.answers import Answer, ShapeError
from aphrodited.chaos.cases import Case


class Ending(StrEnum):
    """See the module's table."""

    ANSWERED = "answered"
    FAILED = "failed"
    BROKEN = "broken"
    SHAPELESS = "shapeless"
    HUNG = "hung"
    LEFT = "left"


@dataclass(slots=True)
class Outcome:
    """Instants are monotonic.  note: the error, in words.  text_times_s: when events with text came."""

    case: Case
    sent_at_s: float
    ended_at_s: float = 0.0
    ending: Ending = Ending.HUNG
    answer: Answer = field(default_factory=Answer)
    note: str = ""
    code: str = ""
    text_times_s: list[float] = field(default_factory=list)


class _Left(Exception):
    """The client has had enough."""


class _Refused(Exception):
    """The documented error came."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code = str(error["code"])


async def ask(session: aiohttp.ClientSession, url: str, case: Case, bound_s: float) -> Outcome:
    """Carry a case out; always returns by bound_s, unless it is cancelled."""
    outcome = Outcome(case, time.monotonic())
    try:
        async with asyncio.timeout(bound_s):
            await _exchange(session, url, outcome)
        outcome.ending = Ending.ANSWERED
    except _Left:
        outcome.ending = Ending.LEFT
    except _Refused as error:
        outcome.ending, outcome.note, outcome.code = Ending.FAILED, str(error), error.code
    except (ShapeError, msgspec.DecodeError) as error:
        outcome.ending, outcome.note = Ending.SHAPELESS, str(error)
    except (aiohttp.ClientError, ConnectionError) as error:
        outcome.ending, outcome.note = Ending.BROKEN, f"{type(error).__name__}: {error}"
    except TimeoutError:
        outcome.ending, outcome.note = Ending.HUNG, f"no end within {bound_s:g} s"
    outcome.ended_at_s = time.monotonic()
    return outcome


async def _exchange(session: aiohttp.ClientSession, url: str, outcome: Outcome) -> None:
    """Raises what `ask` tells apart, if the request does not end as it should."""
    case = outcome.case
    try:
        async with asyncio.timeout(case.leaves_after_s), session.post(url + case.path, json=case.body) as response:
            if response.status != 200:
                raise _refusal(await response.read(), response.headers)
            if not case.is_streamed:
                outcome.answer.add(msgspec.json.decode(await response.read()))
                return
            await _read_stream(response, outcome)
    except TimeoutError:  # that of leaving: the bound's cancels
        raise _Left from None


async def _read_stream(response: aiohttp.ClientResponse, outcome: Outcome) -> None:
    num_events = 0
    async for data in _events(response):
        if data == b"[DONE]":
            return
        event = msgspec.json.decode(data)
        if "error" in event:
            raise _refusal(data, None)
        if outcome.answer.add(event):
            num_events += 1
            outcome.text_times_s.append(time.monotonic())
        if num_events == outcome.case.leaves_after_events:
            response.close()
            raise _Left
    raise aiohttp.ClientPayloadError("the stream ended without [DONE]")


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in response.content.iter_any():
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            if block.startswith(b"data: "):
                yield block.removeprefix(b"data: ")
            elif not block.startswith(b": "):
                raise ShapeError(f"neither event nor comment: {block[:200]!r}")


def _refusal(body: bytes, headers: Any) -> Exception:
    """The error that the body tells.  headers: of a plain answer, None for an event."""
    try:
        error = msgspec.json.decode(body)["error"]
        if set(error) != {"message", "type", "param", "code"} or not isinstance(error["message"], str):
            return ShapeError(f"an error of another shape: {body[:300]!r}")
    except (msgspec.DecodeError, KeyError, TypeError):
        return ShapeError(f"an error without an error object: {body[:300]!r}")
    if headers is not None and "x-request-id" not in headers:
        return ShapeError("an error without x-request-id")
    return _Refused(error)
