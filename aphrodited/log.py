"""Structured logging: see get_logger and configure_logging."""

from __future__ import annotations

from typing import Any

import structlog


def get_logger() -> Any:
    """A structlog logger. Events are `noun_verb` in the past, with fields: log.info("engine_died", pid=1)."""
    return structlog.get_logger()
