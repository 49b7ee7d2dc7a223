"""Whatever is wrong in a model's files, loading ends with a model or with an error that names the file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aphrodited.errors import ModelLoadError
from tests.support.engine_runs import load
from tests.support.tiny_gguf_models import write_gguf_model
from tests.support.tiny_models import write_tiny_llama_dir

NUM_TRIES = 120
STRANGE_VALUES = [
    None, 0, -1, 3, 7, 1.5, 10**30, 10**400, float("inf"), float("nan"), 1e-300, "x", "gelu", True, [], [1, 2], {},
    {"rope_type": "yarn", "factor": 2.0}, {"rope_type": "linear", "factor": 1e30}, {"type": "dynamic", "factor": 4.0},
]  # fmt: skip
MORE_FIELDS = ["rope_scaling", "sliding_window", "head_dim", "quantization_config", "layer_types", "partial_rotary_factor"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama_dir(tmp_path / "tiny", num_hidden_layers=1)


def problem_of(path: Path) -> str | None:
    """Why it cannot be loaded."""
    try:
        load(path)
    except ModelLoadError as error:
        return str(error)
    return None


def is_refused(path: Path) -> bool:
    """Whether it cannot be loaded, for which the error must name the file."""
    problem = problem_of(path)
    assert problem is None or str(path) in problem
    return problem is not None


def with_other_bytes(data: bytes, size: int, rng: random.Random, alphabet: bytes) -> bytes:
    """The data with up to four of its first `size` bytes replaced."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(size)] = rng.choice(alphabet)
    return bytes(changed)


def test_any_damage_to_the_head_of_a_gguf_file(directory: Path, tmp_path: Path) -> None:
    rng, path = random.Random(1), tmp_path / "m.gguf"
    data = write_gguf_model(path, directory).read_bytes()
    num_refused = 0
    for _ in range(NUM_TRIES):
        path.write_bytes(with_other_bytes(data, 10_000, rng, bytes(range(256))))
        num_refused += is_refused(path)
    assert num_refused > 10


def test_any_damage_to_the_header_of_a_safetensors_file(directory: Path) -> None:
    rng, path = random.Random(2), directory / "model.safetensors"
    data = path.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    num_refused = 0
    for _ in range(NUM_TRIES):
        path.write_bytes(with_other_bytes(data, size, rng, b'0123456789-[]{},"eE.'))
        num_refused += is_refused(directory)
    assert num_refused > 10


def test_any_value_in_any_field_of_a_config(directory: Path) -> None:
    rng, path = random.Random(3), directory / "config.json"
    fields = json.loads(path.read_text())
    num_refused = 0
    for _ in range(2 * NUM_TRIES):
        strange = {rng.choice([*fields, *MORE_FIELDS]): rng.choice(STRANGE_VALUES) for _ in range(rng.randint(1, 2))}
        path.write_text(json.dumps(fields | strange))
        num_refused += is_refused(directory)
    assert num_refused > 10
