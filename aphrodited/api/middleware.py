"""What happens around every request: its id, its key, its error answer, its log line and its metrics."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from aphrodited.api.answers import Usage
from aphrodited.api.auth import ApiKeys
from aphrodited.api.error_responses import answer_for
from aphrodited.log import get_logger
from aphrodited.metrics import ApiMetrics

REQUEST_ID = "x-request-id"
OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/version"})
CLIENT_LEFT = 499  # nginx's number for a client that closed its connection
_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

log = get_logger()


def new_request_id() -> str:
    return uuid.uuid4().hex


def request_ids() -> Middleware:
    """Give every request an id, the caller's own if it sent a valid one, and every answer the same."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get(REQUEST_ID, "")
        request["request_id"] = given if _VALID_ID.fullmatch(given) else new_request_id()
        request["arrived_at_s"] = time.monotonic()
        return await handler(request)

    return middleware


async def send_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """An on_response_prepare signal, so that streams have the id too."""
    response.headers[REQUEST_ID] = request.get("request_id", "")


class Traffic:
    """Requests of this worker: under way now, and answered so far (those about health not counted)."""

    def __init__(self) -> None:
        self.num_running = 0
        self.num_answered = 0
        self.idle = asyncio.Event()
        self.idle.set()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        self.num_running += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.num_running -= 1
            if not self.num_running:
                self.idle.set()


def accounts(metrics: ApiMetrics, traffic: Traffic) -> Middleware:
    """Count and log every request under the status that its client saw, or under 499 if the client left."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        status = CLIENT_LEFT
        with traffic.under_way():
            try:
                response = await handler(request)
                status = request.get("status", response.status)
                traffic.num_answered += request.path not in OPEN_PATHS
                return response
            finally:
                _account(request, status, metrics)

    return middleware


def _account(request: web.Request, status: int, metrics: ApiMetrics) -> None:
    resource = request.match_info.route.resource
    endpoint = resource.canonical if resource is not None else "unknown"
    duration_s = time.monotonic() - request["arrived_at_s"]
    model = request.get("model", "")
    metrics.request(model, endpoint, status, duration_s)
    if model or status >= 400:
        usage: Usage = request.get("usage") or Usage()
        log.info(
            "request_finished",
            request_id=request["request_id"],
            model=model,
            endpoint=endpoint,
            status=status,
            num_prompt_tokens=usage.num_prompt_tokens,
            num_completion_tokens=usage.num_completion_tokens,
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
                log.exception("request_failed", request_id=request["request_id"], path=request.path)
            return answer.response()

    return middleware


def keys_required(keys: ApiKeys) -> Middleware:
    """Ask for a key everywhere but where health is told."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS:
            keys.check(request.headers.get("Authorization"))
        return await handler(request)

    return middleware
