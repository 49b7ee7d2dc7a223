"""Tests of aphrodited.workers.engine: what the launcher is told. Its life is tested with real processes."""

from __future__ import annotations

import pytest

from aphrodited.errors import EXIT_CONFIG, EXIT_ENGINE_FAILED, EXIT_TEMPORARY, ConfigError, ModelLoadError
from aphrodited.mq.endpoints import GenerationTakenError
from aphrodited.workers.engine import exit_code_of


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("wrong"), EXIT_CONFIG),
        (ModelLoadError("damaged"), EXIT_CONFIG),
        (GenerationTakenError("taken"), EXIT_TEMPORARY),
        (MemoryError(), EXIT_ENGINE_FAILED),
        (RuntimeError("a bug"), EXIT_ENGINE_FAILED),
    ],
)
def test_an_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code
