"""Puts the HTTP surface together: routes, middleware and what they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from aphrodited.api.admin_routes import ADMIN_PATHS, Admin, add_admin_routes
from aphrodited.api.admission import Admission
from aphrodited.api.auth import ApiKeys
from aphrodited.api.chat import create_chat_completion
from aphrodited.api.completions import create_completion
from aphrodited.api.context import CONTEXT, Context
from aphrodited.api.embeddings import create_embeddings
from aphrodited.api.generation import Generator
from aphrodited.api.health_routes import add_health_routes
from aphrodited.api.middleware import (
    Traffic,
    accounts,
    add_headers,
    close_if_ending,
    errors_as_json,
    keys_required,
    request_ids,
)
from aphrodited.api.model_routes import get_model, list_models
from aphrodited.api.quarantine import Quarantine
from aphrodited.api.resume import Resumer
from aphrodited.api.served_model import ServedModel
from aphrodited.api.sse import STALL_TIMEOUT_S
from aphrodited.api.tokenize_routes import detokenize, tokenize
from aphrodited.config.schema import ApiConfig, RecoveryConfig
from aphrodited.metrics import ApiMetrics


def create_app(
    models: Mapping[str, ServedModel],
    api: ApiConfig,
    recovery: RecoveryConfig,
    *,
    keys: ApiKeys | None = None,
    admin: Admin | None = None,
    metrics: ApiMetrics | None = None,
    render_metrics: Callable[[], bytes] = bytes,
    stall_timeout_s: float = STALL_TIMEOUT_S,
) -> web.Application:
    """The application of one worker. Run it with handler_cancellation=True, or clients that leave go unnoticed.

    admin: for orders to models; without it there are no such routes.
    """
    metrics = metrics or ApiMetrics()
    traffic = Traffic()
    admission = Admission(recovery.hold_timeout_s, recovery.max_held_requests, api.deadline_s)
    middlewares = [request_ids(), accounts(metrics, traffic), errors_as_json()]
    if keys is not None:
        middlewares.append(keys_required(keys, ADMIN_PATHS))
    app = web.Application(middlewares=middlewares, client_max_size=api.max_body_size)
    app.on_response_prepare.extend((add_headers, close_if_ending(traffic)))
    quarantine = Quarantine(metrics)
    resumer = Resumer(admission, quarantine, metrics, recovery)
    generator = Generator(admission, metrics, resumer, api.keepalive_s, stall_timeout_s)
    app[CONTEXT] = Context(models, api, admission, generator, quarantine, traffic, render_metrics)
    _add_routes(app)
    if admin is not None:
        add_admin_routes(app, admin)
    return app


def _add_routes(app: web.Application) -> None:
    add_health_routes(app)
    router = app.router
    router.add_post("/v1/chat/completions", create_chat_completion)
    router.add_post("/v1/completions", create_completion)
    router.add_post("/v1/embeddings", create_embeddings)
    router.add_get("/v1/models", list_models)
    router.add_get("/v1/models/{id:.+}", get_model)
    for prefix in ("", "/v1"):
        router.add_post(f"{prefix}/tokenize", tokenize)
        router.add_post(f"{prefix}/detokenize", detokenize)
