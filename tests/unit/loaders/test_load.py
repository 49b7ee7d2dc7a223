from __future__ import annotations

from pathlib import Path

import pytest
import torch

from aphrodited.errors import ModelLoadError
from aphrodited.layers import half_floats
from aphrodited.layers.quantized_linear import can_quantize
from aphrodited.loaders import load_model
from tests.support.engine_runs import load
from tests.support.teacher import prompt_logits
from tests.support.tiny_gguf_models import write_gguf_model
from tests.support.tiny_models import write_tiny_llama_dir, write_tiny_neox_dir

PROMPT = [1, 2, 3]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama_dir(tmp_path / "model")


def test_progress_rises_to_one_and_names_every_tensor(directory: Path) -> None:
    reports: list[tuple[float, str]] = []
    load_model(directory, report=lambda progress, what: reports.append((progress, what)))
    progress = [value for value, _ in reports]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    assert "model.layers.1.mlp.down_proj.weight" in [what for _, what in reports]


def test_equal_files_have_equal_fingerprints_and_others_do_not(directory: Path, tmp_path: Path) -> None:
    first = load(directory).fingerprint
    assert load(directory).fingerprint == first
    other = write_tiny_llama_dir(tmp_path / "other", seed=1)
    assert load(other).fingerprint != first
    config = directory / "config.json"
    config.write_text(config.read_text().replace("10000.0", "20000.0"))
    assert load(directory).fingerprint != first


def test_a_model_computes_in_float32(directory: Path) -> None:
    assert load(directory, dtype="auto").dtype == torch.float32
    assert load(directory, dtype="float32").dtype == torch.float32
    with pytest.raises(ModelLoadError, match="dtype bfloat16 is not supported on the CPU; use float32 or auto"):
        load(directory, dtype="bfloat16")


@pytest.mark.skipif(not can_quantize(), reason="this machine has no int8 products")
def test_int8_keeps_keys_and_values_in_float16_where_the_cpu_converts(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(directory).cache_dtype == torch.float32
    logits = {}
    for converts, expected in ((True, torch.float16), (False, torch.float32)):
        monkeypatch.setattr(half_floats, "converts_halves", lambda: converts)  # noqa: B023
        model = load(directory, quantization="int8")
        assert model.cache_dtype == expected
        logits[expected] = prompt_logits(model, PROMPT)
    difference = (logits[torch.float16] - logits[torch.float32]).std()
    assert 0.0 < difference < 0.05 * logits[torch.float32].std(), (difference, logits[torch.float32].std())


@pytest.mark.parametrize("has_bfloat16", [False, True])
def test_no_instruction_of_a_cpu_makes_auto_a_half_precision(
    directory: Path, monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool
) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: has_bfloat16)
    half = write_tiny_llama_dir(directory.parent / "half", torch_dtype="bfloat16")
    model = load(half, dtype="auto")
    assert model.dtype == torch.float32
    assert prompt_logits(model, PROMPT).dtype == torch.float32


def test_the_format_must_fit_the_path(directory: Path, tmp_path: Path) -> None:
    file = write_gguf_model(tmp_path / "model.gguf", directory)
    load(file, load_format="gguf")
    load(directory, load_format="safetensors")
    with pytest.raises(ModelLoadError, match="is a directory"):
        load(directory, load_format="gguf")
    with pytest.raises(ModelLoadError, match="is a file"):
        load(file, load_format="safetensors")


@pytest.mark.parametrize("name", ["missing.gguf", "missing", "some/where/missing"])
def test_a_path_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelLoadError, match=f"{name}: there is no such file or directory"):
        load(tmp_path / name)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(ModelLoadError, match=r"model\.gguf: is not a GGUF file"):
        load(path)


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json: there is no such file"):
        load(tmp_path)


@pytest.mark.parametrize("write", [write_tiny_llama_dir, write_tiny_neox_dir])
def test_dummy_weights_take_the_shape_of_a_config_and_are_always_the_same(write: object, tmp_path: Path) -> None:
    directory = write(tmp_path / "shape", weights=False)  # type: ignore[operator]
    first, second = (load(directory, load_format="dummy") for _ in range(2))
    logits = prompt_logits(first, PROMPT)
    assert logits.isfinite().all()
    assert torch.equal(prompt_logits(second, PROMPT), logits)
    assert first.fingerprint == second.fingerprint


def test_a_known_shape_needs_no_file() -> None:
    model = load(Path("EleutherAI/pythia-70m-deduped"), load_format="dummy")
    assert (model.config.vocab_size, model.config.num_layers, model.config.rotary_dim) == (50304, 6, 16)


def test_dummy_of_an_unknown_shape_says_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="built-in shapes: EleutherAI/pythia-70m-deduped"):
        load(tmp_path / "nothing", load_format="dummy")


@pytest.mark.parametrize("write", [write_tiny_llama_dir, write_tiny_neox_dir])
def test_positions_that_no_sequence_reaches_are_not_prepared(write: object, tmp_path: Path) -> None:
    directory = write(tmp_path / "model")  # type: ignore[operator]
    whole, short, long = (load(directory, max_positions=n) for n in (None, 16, 10**6))
    assert [model.num_positions for model in (whole, short, long)] == [128, 16, 128]
    assert torch.equal(prompt_logits(short, PROMPT), prompt_logits(whole, PROMPT))
    assert short.fingerprint == whole.fingerprint
