"""GET /health, /livez, /readyz, /version and /metrics: answered at once, from what is known already."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from aphrodited import __version__
from aphrodited.api.context import CONTEXT
from aphrodited.api.served_model import Availability, choose_model


def add_health_routes(app: web.Application) -> None:
    app.router.add_get("/livez", livez)
    app.router.add_get("/health", readyz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/version", version)
    app.router.add_get("/metrics", metrics)


async def livez(request: web.Request) -> web.Response:
    """200 while this worker answers at all."""
    return _json({"status": "alive"})


async def readyz(request: web.Request) -> web.Response:
    """200 while any model serves, or the one that ?model= names; the body says how each one is."""
    context = request.app[CONTEXT]
    asked = request.query.get("model")
    models = context.models
    if asked is not None:
        models = {asked: choose_model(models, asked)}
    ready = not context.admission.is_stopping and any(model.is_serving for model in models.values())
    states = {name: model.state() for name, model in models.items()}
    body = {
        "ready": ready,
        "models": {name: _describe(state) for name, state in states.items()},
        "parked": [name for name, state in states.items() if state.state == "parked"],
    }
    return _json(body, status=200 if ready else 503)


def _describe(known: Availability) -> dict[str, object]:
    told: dict[str, object] = {"state": known.state}
    if known.reason:
        told["reason"] = known.reason
    if known.due_in_s:
        told["next_try_in_s"] = round(known.due_in_s, 1)
    return told


async def version(request: web.Request) -> web.Response:
    return _json({"version": __version__})


async def metrics(request: web.Request) -> web.Response:
    body = await asyncio.to_thread(request.app[CONTEXT].render_metrics)
    return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
