"""POST /model/ORDER on the admin socket: load, unload, drain and undrain, for whoever can open it.

    body     {"model": NAME, "by": WHO}      by is for the ledger
    query    wait=S                          load: answer when the model serves, after S seconds at most
    answer   {"model": NAME, "state": STATE} 200, or 202 while the model is still on its way

Orders are carried out in threads: they wait for processes to end. Knows no key and no policy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
from aiohttp import web

from aphrodited.config.schema import Config
from aphrodited.health.orders import ModelOrders
from aphrodited.health.states import State
from aphrodited.paths import DaemonPaths

MAX_WAIT_S = 600.0
POLL_S = 0.1

Action = Literal["load", "unload", "drain", "undrain"]
ACTIONS: tuple[Action, ...] = ("load", "unload", "drain", "undrain")


class OrderBody(msgspec.Struct, frozen=True):
    model: str
    by: str = "admin socket"


_decoder = msgspec.json.Decoder(OrderBody)


class OrderRoutes:
    """The handlers. config: as it is now.  state_of: how a model is at this moment."""

    def __init__(self, config: Callable[[], Config], paths: DaemonPaths, state_of: Callable[[str], State]) -> None:
        self._config = config
        self._paths = paths
        self._state_of = state_of

    def add_to(self, application: web.Application) -> None:
        for action in ACTIONS:
            application.router.add_post(f"/model/{action}", self._handler(action))

    def _handler(self, action: Action) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            config = self._config()
            body = await _body(request)
            wait_s = _wait_s(request)
            if body.model not in [model.name for model in config.models]:
                raise web.HTTPNotFound(text=f"there is no model {body.model!r}")
            orders = ModelOrders(config, self._paths, body.by)
            await asyncio.to_thread(getattr(orders, action), body.model)
            if action == "load":
                await self._wait_until_settled(body.model, wait_s)
            state = self._state_of(body.model)
            is_on_its_way = action == "load" and state not in (State.READY, State.DRAINING)
            answer = msgspec.json.encode({"model": body.model, "state": state})
            return web.Response(body=answer, status=202 if is_on_its_way else 200, content_type="application/json")

        return handle

    async def _wait_until_settled(self, model: str, wait_s: float) -> None:
        until_s = time.monotonic() + wait_s
        while time.monotonic() < until_s:
            if self._state_of(model) in (State.READY, State.DRAINING, State.PARKED):
                return
            await asyncio.sleep(POLL_S)


async def _body(request: web.Request) -> OrderBody:
    try:
        return _decoder.decode(await request.read())
    except msgspec.DecodeError as error:
        raise web.HTTPBadRequest(text=f"the body: {error}") from error


def _wait_s(request: web.Request) -> float:
    text = request.query.get("wait", "0")
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise web.HTTPBadRequest(text=f"wait must be seconds from 0 to {MAX_WAIT_S:g}, and is {text!r}")
    return wait_s
