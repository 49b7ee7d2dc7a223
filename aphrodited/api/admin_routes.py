"""POST /v1/model/load and /v1/model/unload: an operator's orders, handed to the monitor on its unix socket.

    api.admin_keys_file   api.keys_file   who may give orders
    given                 either          whoever sends one of the admin keys
    none                  given           nobody here
    none                  none            whoever reaches a port that is open to this machine alone, but no web page

Only the monitor steers processes. Without it these routes answer 503. Knows neither processes nor their order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from aiohttp import web

from aphrodited.api.auth import ApiKeys, is_loopback
from aphrodited.api.body import decode_body
from aphrodited.api.context import CONTEXT
from aphrodited.api.notes import NOTES
from aphrodited.config.schema import ApiConfig
from aphrodited.errors import EngineError, RequestError

ANSWER_TIMEOUT_S = 1800.0
"""For an order and the wait that it may ask for; the monitor has closer limits."""

CONNECT_TIMEOUT_S = 5.0

ADMIN_PATHS = frozenset({"/v1/model/load", "/v1/model/unload"})


class AdminClosedError(RequestError):
    """Nobody may give orders on this port, or not in this way."""

    code = "admin_closed"
    http_status = 403


class MonitorUnavailableError(EngineError):
    """The monitor, which carries orders out, does not answer; it is started again by itself."""

    code = "MONITOR_UNAVAILABLE"


class ModelOrder(msgspec.Struct, frozen=True):
    """The body; the model may be left out if there is only one."""

    model: str | None = None


@dataclass(frozen=True, slots=True)
class Admin:
    """Who may give orders on this port, and where they go. keys: None if there are no admin keys."""

    socket: Path
    keys: ApiKeys | None
    is_open: bool
    worker: str

    @classmethod
    def of(cls, api: ApiConfig, socket: Path, keys: ApiKeys | None, worker: str) -> Admin:
        """For a port as it is configured."""
        return cls(socket, keys, api.keys_file is None and is_loopback(api.host), worker)

    def check(self, request: web.Request) -> None:
        """Raises InvalidApiKeyError, AdminClosedError."""
        if self.keys is not None:
            self.keys.check(request.headers.get("Authorization"))
        elif not self.is_open:
            raise AdminClosedError(
                "No orders are taken on this port: the operator sets api.admin_keys_file, or uses aphroditectl"
            )
        elif "Origin" in request.headers:
            raise AdminClosedError("Orders are not taken from web pages; set api.admin_keys_file to allow them")


ADMIN = web.AppKey("admin", Admin)
_decoder = msgspec.json.Decoder(ModelOrder)


def add_admin_routes(app: web.Application, admin: Admin) -> None:
    app[ADMIN] = admin
    app.router.add_post("/v1/model/load", _forwarding("load"))
    app.router.add_post("/v1/model/unload", _forwarding("unload"))


def _forwarding(action: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def forward(request: web.Request) -> web.Response:
        admin = request.app[ADMIN]
        admin.check(request)
        body = await request.read()
        order = decode_body(body, _decoder) if body else ModelOrder()
        model = request.app[CONTEXT].choose(request, order.model)
        by = f"{admin.worker}, request {request[NOTES].request_id}"
        status, answer = await _ask_monitor(admin.socket, action, {"model": model.name, "by": by}, dict(request.query))
        return web.Response(status=status, body=answer, content_type="application/json")

    return forward


async def _ask_monitor(
    socket: Path, action: str, order: dict[str, str], query: dict[str, str]
) -> tuple[int, bytes]:
    """The monitor's answer, status and body. Raises MonitorUnavailableError."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket)), timeout=timeout) as session,
            session.post(f"http://monitor/model/{action}", json=order, params=query) as response,
        ):
            return response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise MonitorUnavailableError("The monitor, which carries orders out, does not answer: try again") from error
