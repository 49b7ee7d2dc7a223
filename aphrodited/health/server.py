"""The monitor's own HTTP: health, readiness, status and metrics on its port, status and reset on the admin socket.

Answers from pages and from `read_status`; judges nothing. The admin socket lies in the daemon's private folder:
whoever can open it is the operator, so it asks for no key.

    port and socket   GET /livez /readyz[?model=] /health /version /status /metrics
    socket only       POST /reset?role=ROLE, and the orders of health.order_routes
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from aphrodited import __version__
from aphrodited.errors import AphroditeError
from aphrodited.health.monitor import Monitor
from aphrodited.health.order_routes import OrderRoutes
from aphrodited.health.programs import select_programs
from aphrodited.health.states import State
from aphrodited.health.status import read_status
from aphrodited.metrics import render_metrics
from aphrodited.supervision.ledger import Reset, stamp

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HealthRoutes:
    """The handlers, over one monitor."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def application(self, *, admin: bool) -> web.Application:
        """An application with the routes of the port, and with `admin` those of the socket too."""
        application = web.Application(middlewares=[_error_objects])
        application.router.add_get("/livez", self.livez)
        application.router.add_get("/readyz", self.readyz)
        application.router.add_get("/health", self.readyz)
        application.router.add_get("/version", self.version)
        application.router.add_get("/status", self.status)
        application.router.add_get("/metrics", self.metrics)
        if admin:
            application.router.add_post("/reset", self.reset)
            monitor = self._monitor
            orders = OrderRoutes(lambda: monitor.config, monitor.paths, lambda name: monitor.model_views()[name].state)
            orders.add_to(application)
        return application

    async def livez(self, request: web.Request) -> web.Response:
        """200: this process answers."""
        return _json({"status": "alive", "num_rounds": self._monitor.num_rounds})

    async def readyz(self, request: web.Request) -> web.Response:
        """200 while any model serves, or the one that `?model=` names; 503 otherwise, 404 for an unknown one."""
        models = self._monitor.model_views()
        wanted = request.query.get("model")
        if wanted is not None and wanted not in models:
            raise web.HTTPNotFound(text=f"there is no model {wanted!r}; there are: {', '.join(sorted(models))}")
        asked = models if wanted is None else {wanted: models[wanted]}
        ready = any(view.state is State.READY for view in asked.values())
        parked = [name for name, view in asked.items() if view.state is State.PARKED]
        return _json({"ready": ready, "models": asked, "parked": parked}, 200 if ready else 503)

    async def version(self, request: web.Request) -> web.Response:
        return _json({"version": __version__})

    async def status(self, request: web.Request) -> web.Response:
        """The same answer as `aphroditectl status --json`."""
        status = await asyncio.to_thread(read_status, self._monitor.config, self._monitor.paths)
        return web.Response(text=status.to_json() + "\n", content_type="application/json")

    async def metrics(self, request: web.Request) -> web.Response:
        """What every process counted and what every living one's page says, in Prometheus' text format."""
        body = await asyncio.to_thread(render_metrics, self._monitor.paths.metrics_dir, self._monitor.pages())
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def reset(self, request: web.Request) -> web.Response:
        """Forget the deaths of the processes that `?role=` means, so that parked ones are tried at once."""
        word = request.query.get("role", "")
        selected = select_programs(self._monitor.config, word)
        if not selected:
            raise web.HTTPBadRequest(text=f"role {word!r} is no role, model or process of this daemon")
        for program in selected:
            self._monitor.ledger.append(Reset(**stamp(program.name), by="admin socket"))
        return _json({"reset": [program.name for program in selected]})


@web.middleware
async def _error_objects(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error is the error object, those of the framework too."""
    try:
        return await handler(request)
    except AphroditeError as error:
        body = {"error": {"message": str(error), "type": "server_error", "param": None, "code": error.code}}
        return _json(body, error.http_status)
    except web.HTTPException as error:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status, "invalid_request_error")
        unexplained = error.text in (None, f"{error.status}: {error.reason}")
        message = f"{request.method} {request.path}: {error.reason}" if unexplained else error.text
        body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
        return _json(body, error.status)


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), status=status, content_type="application/json")
