"""Serves an application on a listening socket, with our error object also for bytes that are not HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from aphrodited.api.error_responses import ErrorAnswer
from aphrodited.api.listener import Listener
from aphrodited.api.middleware import identify
from aphrodited.api.notes import new_request_id
from aphrodited.log import get_logger

IDLE_TIMEOUT_S = 120.0
"""How long a connection without a request stays open."""

log = get_logger()


class HttpProtocol(RequestHandler):
    """One connection."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way already; no other can be sent")
        request_id = new_request_id()
        if status >= 500:
            log.error("connection_failed", request_id=request_id, exc_info=exc)
            answer = ErrorAnswer(status, "internal_error", "The server failed to answer this request")
        else:
            answer = ErrorAnswer(status, "invalid_request_error", "The bytes received are not a valid HTTP request")
        response = answer.response()
        identify(response, request_id)
        response.force_close()
        return response


@asynccontextmanager
async def serving(app: web.Application, listening: socket.socket, farewell_s: float) -> AsyncIterator[Listener]:
    """Accept and serve for the length of the block, or until the yielded Listener is stopped.

    Handlers are cancelled when their client leaves. At the end, requests under way have `farewell_s` seconds, then
    their connections are closed. The socket stays open.
    """
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=farewell_s)
    await runner.setup()
    try:
        assert runner.server is not None
        listener = Listener(listening, _protocol_factory(runner.server))
        listener.start()
        try:
            yield listener
        finally:
            listener.stop()
    finally:
        await runner.cleanup()


def _protocol_factory(server: web.Server) -> Callable[[], HttpProtocol]:
    loop = asyncio.get_running_loop()
    silent = logging.getLogger(f"{__name__}.access")  # disabled: middleware.accounts tells more
    silent.disabled = True
    return lambda: HttpProtocol(server, loop=loop, access_log=silent, keepalive_timeout=IDLE_TIMEOUT_S)
