"""Makes the EngineBackend that a model's configuration asks for. Imports a backend only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import assert_never

from aphrodited.config.schema import ModelConfig
from aphrodited.interfaces import EngineBackend


def create_backend(
    config: ModelConfig, cache_dir: Path, report: Callable[[float, str], None], *, gently: bool = False
) -> EngineBackend:
    """A backend that is ready to step.

    gently: load with little of the processor, because another engine needs it.

    cache_dir: for files that can be made again.  report(progress from 0 to 1, what is being done): called with each
    sign of progress while loading.  Raises ConfigError, ModelLoadError.
    """
    match config.backend:
        case "embedded":
            from aphrodited.engine.embedded_backend import create_embedded_backend

            return create_embedded_backend(config, cache_dir, report, gently=gently)
        case "null":
            from aphrodited.engine.null_backend import create_null_backend

            backend = create_null_backend(config)
            report(1.0, "ready")
            return backend
        case _:
            assert_never(config.backend)
