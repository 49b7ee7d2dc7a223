"""Reads a request's JSON body into a typed struct, or raises a RequestError that names the field."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from aiohttp import web

from aphrodited.api.error_responses import RequestTimeoutError
from aphrodited.api.notes import NOTES
from aphrodited.errors import RequestError

BODY_TIMEOUT_S = 60.0
_PLACE = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<where>.*)`$", re.DOTALL)

T = TypeVar("T")


async def read_body(request: web.Request, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's type.

    Raises RequestError for a body that is not JSON or has a wrong type in it, HTTPRequestEntityTooLarge for one
    that is too large.
    """
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await request.read()
    except TimeoutError as error:
        raise RequestTimeoutError(f"The request body did not arrive within {BODY_TIMEOUT_S:.0f} s") from error
    request[NOTES].body_size = len(body)
    return decode_body(body, decoder)


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise wrong_type(error) from error
    except msgspec.DecodeError as error:
        raise RequestError(f"The request body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("The request body is nested too deeply") from error


def wrong_type(error: msgspec.ValidationError, within: str = "") -> RequestError:
    """The error with the field's path as its `param`; `within` is the path of what was converted."""
    found = _PLACE.match(str(error))
    if found is None:
        return RequestError(str(error), param=within or None)
    param = f"{within}{found['where']}"
    return RequestError(f"{param}: {found['what']}", param=param)
