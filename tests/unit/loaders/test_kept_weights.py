"""int8 weights that an earlier engine rounded: the same numbers, without reading the model's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from aphrodited.layers.quantized_linear import can_quantize
from aphrodited.loaders import load_model
from aphrodited.loaders.checkpoint import CheckpointWeights
from aphrodited.loaders.kept_weights import KeepingWeights
from aphrodited.models.causal_lm import CausalLM
from tests.support.engine_process import wait_blocking
from tests.support.engine_runs import load
from tests.support.teacher import prompt_logits
from tests.support.tiny_gguf_models import write_gguf_model
from tests.support.tiny_models import write_tiny_llama_dir, write_tiny_neox_dir

pytestmark = pytest.mark.skipif(not can_quantize(), reason="this machine has no int8 products")
int8_kernels = pytest.importorskip("aphrodited.layers.int8_kernels")

PROMPT = [1, 2, 3, 4, 5]


def kept_files(cache: Path) -> list[Path]:
    return [path for path in (cache / "weights").glob("*.safetensors") if not path.name.startswith(".")]


def load_and_keep(path: Path, cache: Path) -> CausalLM:
    """An int8 model, and its weights kept."""
    before = kept_files(cache)
    model = load(path, quantization="int8", cache_dir=cache)
    wait_blocking(lambda: bool(set(kept_files(cache)) - set(before)))
    return model


@pytest.fixture(params=["llama", "gpt-neox", "gguf"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write = write_tiny_neox_dir if request.param == "gpt-neox" else write_tiny_llama_dir
    directory = write(tmp_path / "model")
    return write_gguf_model(tmp_path / "model.gguf", directory) if request.param == "gguf" else directory


def test_no_kernel_runs_beside_those_that_are_being_loaded(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every threading layer of numba's takes two at once."""
    load_and_keep(path, tmp_path)
    events: list[str] = []

    def preload(*arguments: object) -> None:
        time.sleep(0.3)
        events.append("loaded")

    def multiply(*arguments: object) -> None:
        events.append("multiplied")
        run(*arguments)

    run = int8_kernels.multiply
    monkeypatch.setattr("aphrodited.loaders.load._preload_kernels", preload)
    monkeypatch.setattr(int8_kernels, "multiply", multiply)
    load(path, quantization="int8", cache_dir=tmp_path)
    assert "multiplied" in events  # the trial of whether rows are exact
    assert events.index("loaded") == 0


def test_the_next_engine_has_the_same_numbers_and_reads_no_matrix(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_and_keep(path, tmp_path)
    read: list[tuple[int, ...]] = []
    take = CheckpointWeights.take

    def note(weights: CheckpointWeights, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        read.append(shape)
        return take(weights, name, shape)

    monkeypatch.setattr(CheckpointWeights, "take", note)
    second = load(path, quantization="int8", cache_dir=tmp_path)
    assert torch.equal(prompt_logits(second, PROMPT), prompt_logits(first, PROMPT))
    assert second.fingerprint == first.fingerprint
    assert all(len(shape) == 1 for shape in read)


def test_progress_rises_to_one_from_kept_weights_too(path: Path, tmp_path: Path) -> None:
    load_and_keep(path, tmp_path)
    reports: list[tuple[float, str]] = []
    load_model(
        path, quantization="int8", cache_dir=tmp_path, report=lambda progress, what: reports.append((progress, what))
    )
    progress = [value for value, _ in reports]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    assert "head" in [what for _, what in reports]


def test_another_model_at_the_same_place_is_read_again(tmp_path: Path) -> None:
    path = write_tiny_llama_dir(tmp_path / "model")
    first = load_and_keep(path, tmp_path)
    (old,) = kept_files(tmp_path)
    write_tiny_llama_dir(tmp_path / "model", seed=1)
    second = load_and_keep(path, tmp_path)
    assert not torch.equal(prompt_logits(second, PROMPT), prompt_logits(first, PROMPT))
    wait_blocking(lambda: not old.exists())
    assert len(kept_files(tmp_path)) == 1


def test_damaged_weights_are_made_again(tmp_path: Path) -> None:
    path = write_tiny_llama_dir(tmp_path / "model")
    first = load_and_keep(path, tmp_path)
    (file,) = kept_files(tmp_path)
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    second = load(path, quantization="int8", cache_dir=tmp_path)
    assert torch.equal(prompt_logits(second, PROMPT), prompt_logits(first, PROMPT))
    wait_blocking(lambda: file.read_bytes() == good)


def test_float32_weights_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeepingWeights, "keep", pytest.fail)
    load(write_tiny_llama_dir(tmp_path / "model"), cache_dir=tmp_path)
    assert kept_files(tmp_path) == []
