from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from aphrodited.errors import ModelLoadError
from aphrodited.layers.linear import Activation
from aphrodited.loaders.gguf_checkpoint import GgufCheckpoint
from aphrodited.loaders.safetensors_files import SafetensorsCheckpoint
from tests.support.engine_runs import load
from tests.support.teacher import prompt_logits
from tests.support.tiny_gguf_models import write_gguf_model
from tests.support.tiny_models import write_tiny_llama_dir, write_tiny_neox_dir

Kind = gguf.GGMLQuantizationType
PROMPT = [5, 7, 200, 31, 9, 9, 1]
LONG_PROMPT = [(7 * i * i + 3 * i) % 300 for i in range(60)]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # fields of a config.json, the same as GGUF metadata
    "llama with biases": ({"attention_bias": True}, {}),
    "llama with linear rotation": (
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    ),
    "llama with linear rotation, older key": (
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"llama.rope.scale_linear": 4.0},
    ),
    "llama with yarn": (
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 32,
        },
    ),
    "mistral": (
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 9},
        {"llama.attention.sliding_window": 9},
    ),
    "qwen2": ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, {}),
    "qwen3": ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}, {}),
}


@pytest.fixture
def llama_dir(tmp_path: Path) -> Path:
    return write_tiny_llama_dir(tmp_path / "llama")


@pytest.mark.parametrize("write", [write_tiny_llama_dir, write_tiny_neox_dir])
def test_a_file_is_the_same_model_as_the_directory_it_was_made_of(write: object, tmp_path: Path) -> None:
    directory = write(tmp_path / "model", tie_word_embeddings=False)  # type: ignore[operator]
    file = write_gguf_model(tmp_path / "model.gguf", directory)
    expected, found = SafetensorsCheckpoint(directory), GgufCheckpoint(file)
    assert found.shapes == expected.shapes
    for name in expected.shapes:
        assert torch.equal(found.read(name), expected.read(name)), name
    assert torch.equal(prompt_logits(load(file), PROMPT), prompt_logits(load(directory), PROMPT))


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_variant_is_the_same_model_in_both_formats(
    variant: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    fields, metadata = variant
    directory = write_tiny_llama_dir(tmp_path / "model", **fields)
    file = write_gguf_model(tmp_path / "model.gguf", directory, metadata=metadata)
    expected, found = SafetensorsCheckpoint(directory), GgufCheckpoint(file)
    assert found.config.rope_scaling == expected.config.rope_scaling
    assert found.config.sliding_windows == expected.config.sliding_windows
    assert found.config.max_position_embeddings == expected.config.max_position_embeddings
    assert torch.equal(prompt_logits(load(file), LONG_PROMPT), prompt_logits(load(directory), LONG_PROMPT))


def test_the_rotation_of_llama_3_is_read_from_its_tensor(tmp_path: Path) -> None:
    directory = write_tiny_llama_dir(tmp_path / "model", rope_theta=500.0, head_dim=16, rope_scaling=LLAMA3)
    frequencies = 500.0 ** -(np.arange(0, 16, 2) / 16)
    kept = np.clip((32 * frequencies / (2 * np.pi) - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    factors = (1.0 / ((1.0 - kept) / 8.0 + kept)).astype(np.float32)
    file = write_gguf_model(tmp_path / "model.gguf", directory, tensors={"rope_freqs.weight": factors})
    torch.testing.assert_close(
        prompt_logits(load(file), LONG_PROMPT), prompt_logits(load(directory), LONG_PROMPT), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("factors", "problem"), [([1.0] * 3, "does not fit"), ([1.0, -1.0, 1.0, 1.0], "not positive")])
def test_a_rotation_that_does_not_fit_is_refused(factors: list[float], problem: str, llama_dir: Path, tmp_path: Path) -> None:
    tensors = {"rope_freqs.weight": np.array(factors, np.float32)}
    file = write_gguf_model(tmp_path / "model.gguf", llama_dir, tensors=tensors)
    with pytest.raises(ModelLoadError, match=rf"model\.gguf: tensor rope_freqs\.weight .*{problem}"):
        load(file)


@pytest.mark.parametrize(
    ("fields", "metadata", "problem"),
    [
        ({"model_type": "qwen2"}, {"qwen2.attention.sliding_window": 9}, "sliding window attention is not supported in qwen2"),
        ({"model_type": "qwen2"}, {"qwen2.rope.dimension_count": 4}, "partial rotation"),
    ],
)
def test_what_a_qwen_file_leaves_open_is_refused(
    fields: dict[str, Any], metadata: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    directory = write_tiny_llama_dir(tmp_path / "model", **fields)
    with pytest.raises(ModelLoadError, match=problem):
        load(write_gguf_model(tmp_path / "model.gguf", directory, metadata=metadata))


@pytest.mark.parametrize(("model_type", "missing"), [("qwen2", "attn_q.bias"), ("qwen3", "attn_k_norm.weight")])
def test_a_qwen_without_what_makes_it_one_is_refused(model_type: str, missing: str, tmp_path: Path) -> None:
    directory = write_tiny_llama_dir(tmp_path / "model", model_type=model_type)
    file = write_gguf_model(tmp_path / "model.gguf", directory, leave_out=(f"blk.0.{missing}",))
    with pytest.raises(ModelLoadError, match="is missing"):
        load(file)


def test_metadata_becomes_the_architecture(llama_dir: Path, tmp_path: Path) -> None:
    file = write_gguf_model(tmp_path / "model.gguf", llama_dir, metadata={"tokenizer.ggml.eot_token_id": 0})
    config, expected = GgufCheckpoint(file).config, SafetensorsCheckpoint(llama_dir).config
    assert config.eos_token_ids == (2, 0)
    assert config.norm_eps == pytest.approx(expected.norm_eps)
    same = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "rotary_dim", "rope_theta")
    assert all(getattr(config, field) == getattr(expected, field) for field in same)


def test_a_file_of_the_other_family_has_its_variants(tmp_path: Path) -> None:
    directory = write_tiny_neox_dir(tmp_path / "neox", use_parallel_residual=False)
    config = GgufCheckpoint(write_gguf_model(tmp_path / "neox.gguf", directory)).config
    assert (config.rotary_dim, config.has_parallel_residual, config.activation) == (2, False, Activation.GELU)
    assert config.has_qkv_bias
    assert config.has_output_bias
    assert config.has_mlp_bias


def test_a_file_without_a_head_is_tied_to_its_embedding(tmp_path: Path) -> None:
    directory = write_tiny_llama_dir(tmp_path / "llama", tie_word_embeddings=True)
    file = write_gguf_model(tmp_path / "model.gguf", directory)
    assert GgufCheckpoint(file).config.tie_word_embeddings
    assert torch.equal(prompt_logits(load(file), PROMPT), prompt_logits(load(directory), PROMPT))


@pytest.mark.parametrize(
    ("kind", "tolerance"), [(Kind.F16, 1e-3), (Kind.BF16, 1e-2), (Kind.Q8_0, 1e-2), (Kind.Q4_1, 0.12), (Kind.Q4_0, 0.2), (Kind.Q5_0, 0.1), (Kind.Q5_1, 0.06)]
)
def test_quantised_values_are_close_to_what_was_quantised(
    kind: gguf.GGMLQuantizationType, tolerance: float, llama_dir: Path, tmp_path: Path
) -> None:
    file = write_gguf_model(tmp_path / "model.gguf", llama_dir, matrix_type=kind)
    checkpoint, exact = GgufCheckpoint(file), SafetensorsCheckpoint(llama_dir)
    for name in exact.shapes:
        torch.testing.assert_close(checkpoint.read(name), exact.read(name), rtol=0, atol=tolerance)
    name = "model.embed_tokens.weight"
    assert torch.equal(checkpoint.read_embedding(name)(torch.tensor([7, 7, 0])), checkpoint.read(name)[[7, 7, 0]])
    load(file)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"general.architecture": "mamba"}, "'mamba' is not supported; supported are llama, qwen2, qwen3, gptneox"),
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling of type 'longrope' is not supported; supported are none"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.factor is None, expected a positive number"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0, "llama.rope.scaling.yarn_ext_factor": 0.5},
            "yarn_ext_factor other than 1",
        ),
        ({"llama.expert_count": 8}, "mixtures of experts"),
        ({"llama.attention.sliding_window_pattern": 2}, "sliding window attention in some layers only"),
        ({"llama.attention.value_length": 16}, "values of another size than keys"),
        ({"llama.attention.head_count_kv": 3}, "head_count 4 is not a multiple of head_count_kv 3"),
        ({"llama.rope.dimension_count": 4}, "partial rotation"),
        ({"llama.embedding_length": 0}, "llama.embedding_length is 0, expected a positive integer"),
        ({"llama.block_count": None}, "llama.block_count is None, expected a positive integer"),
        ({"llama.block_count": 3}, "blk.2|model.layers.2"),
        ({"llama.block_count": 1}, "blk.1.* not part of a LlamaForCausalLM"),
        ({"llama.feed_forward_length": 32}, "ffn_gate.weight has shape"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    metadata: dict[str, object], problem: str, llama_dir: Path, tmp_path: Path
) -> None:
    file = write_gguf_model(tmp_path / "model.gguf", llama_dir, metadata=metadata)
    with pytest.raises(ModelLoadError, match=problem) as error:
        load(file)
    assert str(file) in str(error.value)


def test_an_unsupported_type_is_named_with_its_tensor(llama_dir: Path, tmp_path: Path) -> None:
    file = write_gguf_model(tmp_path / "model.gguf", llama_dir, matrix_type=Kind.MXFP4)
    with pytest.raises(ModelLoadError, match=r"tensor \S+ has the type MXFP4; supported are F32, F16"):
        load(file)


def test_a_missing_tensor_is_named(llama_dir: Path, tmp_path: Path) -> None:
    file = write_gguf_model(tmp_path / "model.gguf", llama_dir, leave_out=("blk.1.ffn_up.weight",))
    with pytest.raises(ModelLoadError, match=r"model\.gguf: tensor model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        load(file)


def test_a_file_cut_anywhere_is_an_error_that_names_it(llama_dir: Path, tmp_path: Path) -> None:
    whole = write_gguf_model(tmp_path / "model.gguf", llama_dir).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, len(whole) - 64, 4099), len(whole) - 64]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
            GgufCheckpoint(cut)
    with pytest.raises(ModelLoadError, match=r"cut\.gguf: is truncated: tensor \S+ ends \d+ bytes after the file"):
        GgufCheckpoint(cut)
