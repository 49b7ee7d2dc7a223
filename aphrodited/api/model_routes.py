"""GET /v1/models and /v1/models/{id}: the models that are served."""

from __future__ import annotations

import time

import msgspec
from aiohttp import web

from aphrodited.api.context import CONTEXT
from aphrodited.api.served_model import ServedModel, choose_model

_started_at = int(time.time())


async def list_models(request: web.Request) -> web.Response:
    """Every model that a request may name, also while its engine is starting again."""
    models = request.app[CONTEXT].models.values()
    return _json({"object": "list", "data": [_card(model) for model in models if _is_servable(model)]})


async def get_model(request: web.Request) -> web.Response:
    models = request.app[CONTEXT].models
    return _json(_card(choose_model({n: m for n, m in models.items() if _is_servable(m)}, request.match_info["id"])))


def _is_servable(model: ServedModel) -> bool:
    return model.is_serving or model.state().due_in_s is not None


def _card(model: ServedModel) -> dict[str, object]:
    facts = model.client.facts
    return {
        "id": model.name,
        "object": "model",
        "created": _started_at,
        "owned_by": "aphrodited",
        "max_model_len": facts.max_model_len if facts else None,
    }


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
