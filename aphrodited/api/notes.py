"""What is noted about one request on its way, for its answer, its log line and its metrics."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

from aiohttp import web

from aphrodited.api.answers import Usage


@dataclass(slots=True)
class Notes:
    """error_status: of an error that was told inside a stream, whose HTTP status had been sent before."""

    request_id: str
    arrived_at_s: float = field(default_factory=time.monotonic)
    body_size: int = 0
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    headers_sent: bool = False
    error_status: int | None = None


NOTES = web.RequestKey("notes", Notes)


def new_request_id() -> str:
    return uuid.uuid4().hex
