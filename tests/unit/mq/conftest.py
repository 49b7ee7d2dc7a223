"""A runtime directory short enough for socket paths, which pytest's own are not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aphrodited.paths import ModelPaths, model_folder


@pytest.fixture
def model_paths() -> Iterator[ModelPaths]:
    folder = Path(tempfile.mkdtemp(prefix="aph-"))
    yield ModelPaths(folder / "m" / model_folder("some model"))
    shutil.rmtree(folder)
