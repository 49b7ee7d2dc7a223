"""Tests of aphrodited.workers.engine: what the launcher is told. Its life is tested with real processes."""

from __future__ import annotations

import msgspec
import pytest

from aphrodited.errors import EXIT_CONFIG, EXIT_ENGINE_FAILED, EXIT_TEMPORARY, ConfigError, ModelLoadError
from aphrodited.interfaces import ModelFacts
from aphrodited.mq.endpoints import GenerationTakenError
from aphrodited.workers.engine import caveat, exit_code_of


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


def test_only_an_engine_that_is_not_deterministic_needs_a_word() -> None:
    facts = ModelFacts("m", 8, 8, (), 4, 2, 1, "float32", "f", deterministic=True, backend="embedded")
    assert caveat(facts) == ""
    other = msgspec.structs.replace(facts, deterministic=False, nondeterminism="computed on cuda:0")
    assert caveat(other) == "not deterministic: computed on cuda:0"
