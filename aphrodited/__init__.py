"""aphrodited keeps a large language model serving on a Linux host, whatever happens.

The public names below are resolved when first used, so that importing the package costs nothing and a process
that only speaks HTTP never loads torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "AphroditeEngine": "aphrodited.engine.aphrodite_engine",
    "AsyncAphrodite": "aphrodited.async_engine",
    "MQAphroditeEngine": "aphrodited.mq.engine",
    "MQAphroditeEngineClient": "aphrodited.mq.client",
    "ENGINE_DEAD_ERROR": "aphrodited.errors",
    "MQEngineDeadError": "aphrodited.errors",
    "MQClientClosedError": "aphrodited.errors",
    "LLM": "aphrodited.llm",
    "ModelConfig": "aphrodited.config.schema",
    "SamplingParams": "aphrodited.sampling_params",
    "launch_engine": "aphrodited.workers.launch",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
