"""What happens around every request: its id, its key, its error answer, its log line and its metrics."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from aphrodited.api.auth import ApiKeys
from aphrodited.api.error_responses import answer_for
from aphrodited.api.notes import NOTES, Notes, new_request_id
from aphrodited.log import get_logger
from aphrodited.metrics import ApiMetrics

REQUEST_ID = "x-request-id"
OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/version"})
CLIENT_LEFT = 499  # nginx's number for a client that closed its connection
_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

log = get_logger()


def request_ids() -> Middleware:
    """Give every request an id, the caller's own if it sent a valid one, and every answer the same."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get(REQUEST_ID, "")
        request[NOTES] = Notes(given if _VALID_ID.fullmatch(given) else new_request_id())
        return await handler(request)

    return middleware


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """An on_response_prepare signal, so that streams have them too."""
    notes = request[NOTES]
    notes.headers_sent = True
    identify(response, notes.request_id)


def identify(response: web.StreamResponse, request_id: str) -> None:
    """Say which request this answers and what server answers, without the versions of its parts."""
    response.headers[REQUEST_ID] = request_id
    response.headers["Server"] = "aphrodited"


class Traffic:
    """Requests of this worker: under way now, and answered so far (those about health not counted).

    is_ending: every answer that begins from here on is its connection's last.
    """

    def __init__(self) -> None:
        self.is_ending = False
        self.num_begun = 0
        self.num_running = 0
        self.num_answered = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        self.num_begun += 1
        self.num_running += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.num_running -= 1
            if not self.num_running:
                self.idle.set()


def close_if_ending(traffic: Traffic) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """An on_response_prepare signal: once the worker ends, tell the client not to use its connection again.

    Politely: it reads so in the headers. An answer whose headers are out leaves its connection to one more request.
    """

    async def signal(request: web.Request, response: web.StreamResponse) -> None:
        if traffic.is_ending:
            response.force_close()
            response.headers["Connection"] = "close"

    return signal


def accounts(metrics: ApiMetrics, traffic: Traffic) -> Middleware:
    """Count and log every request under the status that its client saw, or under 499 if the client left."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        status = CLIENT_LEFT
        with traffic.under_way():
            try:
                response = await handler(request)
                status = request[NOTES].error_status or response.status
                traffic.num_answered += request.path not in OPEN_PATHS
                return response
            finally:
                _account(request, status, metrics)

    return middleware


def _account(request: web.Request, status: int, metrics: ApiMetrics) -> None:
    resource = request.match_info.route.resource
    endpoint = resource.canonical if resource is not None else "unknown"
    notes = request[NOTES]
    duration_s = time.monotonic() - notes.arrived_at_s
    metrics.request(notes.model, endpoint, status, duration_s)
    if notes.model or status >= 400:
        log.info(
            "request_finished",
            request_id=notes.request_id,
            model=notes.model,
            endpoint=endpoint,
            status=status,
            num_prompt_tokens=notes.usage.num_prompt_tokens,
            num_completion_tokens=notes.usage.num_completion_tokens,
            duration_s=round(duration_s, 4),
        )


def errors_as_json() -> Middleware:
    """Turn every exception into an error answer; those nobody expected go to the log with their traceback."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ConnectionError:
            raise  # the client is gone: there is nobody to answer
        except Exception as error:
            answer = answer_for(error, method=request.method, path=request.path)
            if answer.status == 500:
                log.exception("request_failed", request_id=request[NOTES].request_id, path=request.path)
            if request[NOTES].headers_sent:
                raise ConnectionError("half of an answer is out; only closing tells that it is broken") from error
            return answer.response()

    return middleware


def keys_required(keys: ApiKeys, own_check: frozenset[str] = frozenset()) -> Middleware:
    """Ask for a key everywhere but where health is told, and on paths that check their own."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS and request.path not in own_check:
            keys.check(request.headers.get("Authorization"))
        return await handler(request)

    return middleware
