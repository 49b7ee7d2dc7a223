"""What the handlers of one application share, under one typed key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from aphrodited.api.admission import Admission
from aphrodited.api.generation import Generator
from aphrodited.api.middleware import Traffic
from aphrodited.api.notes import NOTES
from aphrodited.api.quarantine import Quarantine
from aphrodited.api.served_model import ServedModel, choose_model
from aphrodited.config.schema import ApiConfig


@dataclass(frozen=True, slots=True)
class Context:
    models: Mapping[str, ServedModel]
    config: ApiConfig
    admission: Admission
    generator: Generator
    quarantine: Quarantine
    traffic: Traffic
    render_metrics: Callable[[], bytes]

    def choose(self, request: web.Request, name: str | None) -> ServedModel:
        """The model a request asks for, noted for its log line and metrics. Raises RequestError."""
        model = choose_model(self.models, name)
        request[NOTES].model = model.name
        return model


CONTEXT = web.AppKey("context", Context)
