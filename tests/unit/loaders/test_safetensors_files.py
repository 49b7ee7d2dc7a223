from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from aphrodited.errors import ModelLoadError
from aphrodited.loaders.safetensors_files import SafetensorsCheckpoint
from tests.support.engine_runs import load
from tests.support.teacher import prompt_logits
from tests.support.tiny_models import write_tiny_llama_dir, write_tiny_neox_dir

PROMPT = [3, 1, 4, 1, 5]
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny_llama_dir(tmp_path / "model")


def rewrite(directory: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Replace, add or (None) remove tensors."""
    tensors = load_file(directory / "model.safetensors") | change
    save_file({n: t.contiguous() for n, t in tensors.items() if t is not None}, directory / "model.safetensors")


def shard(directory: Path) -> dict[str, str]:
    """Split the model over two files with an index; returns the index's map."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map = {n: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, n in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in tensors if weight_map[n] == file}, directory / file)
    write_index(directory, weight_map)
    return weight_map


def write_index(directory: Path, weight_map: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_are_the_same_model_as_one_file(directory: Path) -> None:
    whole = prompt_logits(load(directory), PROMPT)
    shard(directory)
    assert torch.equal(prompt_logits(load(directory), PROMPT), whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_formats_are_widened(directory: Path, dtype: torch.dtype) -> None:
    rewrite(directory, {n: t.to(dtype) for n, t in load_file(directory / "model.safetensors").items()})
    half = prompt_logits(load(directory), PROMPT)
    rewrite(directory, {n: t.float() for n, t in load_file(directory / "model.safetensors").items()})
    assert torch.equal(prompt_logits(load(directory), PROMPT), half)


def test_buffers_of_old_checkpoints_are_let_be(tmp_path: Path) -> None:
    llama, neox = write_tiny_llama_dir(tmp_path / "llama"), write_tiny_neox_dir(tmp_path / "neox")
    rewrite(llama, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    rewrite(neox, {"gpt_neox.layers.1.attention.bias": torch.ones(4), "gpt_neox.layers.1.attention.masked_bias": torch.ones(1)})
    load(llama)
    load(neox)


def test_a_head_written_out_beside_a_tied_embedding_is_let_be(tmp_path: Path) -> None:
    directory = write_tiny_llama_dir(tmp_path / "tied", tie_word_embeddings=True)
    expected = prompt_logits(load(directory), PROMPT)
    rewrite(directory, {"lm_head.weight": torch.zeros(320, 32)})
    assert torch.equal(prompt_logits(load(directory), PROMPT), expected)


def test_a_missing_tensor_is_named(directory: Path) -> None:
    rewrite(directory, {UP: None})
    with pytest.raises(ModelLoadError, match=f"tensor {UP} is missing"):
        load(directory)


def test_a_tensor_left_over_is_named(directory: Path) -> None:
    rewrite(directory, {"model.layers.7.mlp.up_proj.weight": torch.zeros(2, 2)})
    with pytest.raises(ModelLoadError, match=r"model\.layers\.7\.mlp\.up_proj\.weight: not part of a LlamaForCausalLM"):
        load(directory)


def test_another_shape_is_named(directory: Path) -> None:
    rewrite(directory, {UP: torch.zeros(64, 31)})
    with pytest.raises(ModelLoadError, match=rf"{UP} has shape \(64, 31\), the config asks for \(64, 32\)"):
        load(directory)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", [UP, "model.embed_tokens.weight"])
def test_values_that_are_not_finite_are_named(directory: Path, name: str, value: float) -> None:
    tensor = load_file(directory / "model.safetensors")[name]
    tensor[1, 2] = value
    rewrite(directory, {name: tensor})
    with pytest.raises(ModelLoadError, match=f"model.safetensors: tensor {name} has values that are not finite"):
        load(directory)


def test_numbers_that_are_no_floats_are_refused(directory: Path) -> None:
    rewrite(directory, {UP: torch.zeros(64, 32, dtype=torch.int8)})
    with pytest.raises(ModelLoadError, match=f"tensor {UP} has the type I8; supported are F32"):
        load(directory)


def test_a_file_cut_anywhere_is_an_error_that_names_it(directory: Path) -> None:
    path = directory / "model.safetensors"
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 3001), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
            SafetensorsCheckpoint(directory)
    with pytest.raises(ModelLoadError, match=r"is truncated: tensor \S+ ends 1 bytes after the file"):
        SafetensorsCheckpoint(directory)


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[1]",
        b'{"a": 3}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, 4]}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_damaged_header_is_an_error(directory: Path, header: bytes) -> None:
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        SafetensorsCheckpoint(directory)


def test_an_index_that_names_what_is_not_there_is_an_error(directory: Path) -> None:
    weight_map = shard(directory)
    write_index(directory, weight_map | {"model.extra": "model-00001-of-00002.safetensors"})
    with pytest.raises(ModelLoadError, match=r"00001-of-00002\.safetensors: tensor model\.extra is missing"):
        SafetensorsCheckpoint(directory)
    write_index(directory, weight_map | {UP: "model-00003-of-00002.safetensors"})
    with pytest.raises(ModelLoadError, match=r"00003-of-00002\.safetensors: cannot be read: No such file"):
        SafetensorsCheckpoint(directory)


@pytest.mark.parametrize("weight_map", [{}, [], "x", {UP: 3}, {UP: "../model.safetensors"}, {UP: "/etc/passwd"}])
def test_a_damaged_index_is_an_error(directory: Path, weight_map: object) -> None:
    write_index(directory, weight_map)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors\.index\.json"):
        SafetensorsCheckpoint(directory)


def test_pickled_weights_are_never_read(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"has no \.safetensors file"):
        SafetensorsCheckpoint(directory)


def test_several_files_without_an_index_are_refused(directory: Path) -> None:
    shard(directory)
    (directory / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelLoadError, match=r"2 \.safetensors files but no model\.safetensors\.index\.json"):
        SafetensorsCheckpoint(directory)
