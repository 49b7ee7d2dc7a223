from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from aphrodited.errors import ModelLoadError
from aphrodited.layers.linear import Activation
from aphrodited.layers.rotary import DynamicScaling, LinearScaling, Llama3Scaling, YarnScaling
from aphrodited.models.config import Architecture, ModelArchitecture
from aphrodited.models.config_fields import ConfigFields
from aphrodited.models.hf_config import parse_architecture, read_architecture
from tests.support.tiny_models import write_tiny_llama_dir

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"]}
GPT_NEOX = {k: v for k, v in LLAMA.items() if k != "num_key_value_heads"} | {"architectures": ["GPTNeoXForCausalLM"]}


def parse(base: dict[str, Any], generation: dict[str, Any] | None = None, **changes: Any) -> ModelArchitecture:
    return parse_architecture(
        ConfigFields(base | changes, "config.json"), ConfigFields(generation or {}, "generation_config.json")
    )


def test_a_llama_has_the_defaults_of_its_family() -> None:
    config = parse(LLAMA)
    assert config.architecture is Architecture.LLAMA
    assert (config.head_dim, config.rotary_dim, config.rope_theta, config.norm_eps) == (8, 8, 10000.0, 1e-6)
    assert (config.num_heads, config.num_kv_heads, config.qkv_size) == (8, 4, 128)
    assert config.activation is Activation.SILU
    variants = (config.tie_word_embeddings, config.has_qkv_bias, config.has_output_bias, config.has_parallel_residual)
    assert not any(variants)
    assert (config.rope_scaling, config.sliding_windows, config.has_qk_norm) == (None, (), False)


def test_a_gpt_neox_has_the_defaults_of_its_family() -> None:
    config = parse(GPT_NEOX)
    assert config.architecture is Architecture.GPT_NEOX
    assert (config.num_kv_heads, config.rotary_dim, config.norm_eps) == (8, 2, 1e-5)
    assert config.activation is Activation.GELU
    assert config.has_qkv_bias
    assert config.has_output_bias
    assert config.has_parallel_residual


def test_rotation_is_read_from_old_and_new_places() -> None:
    assert parse(LLAMA, rope_theta=5.0).rope_theta == 5.0
    assert parse(LLAMA, rope_parameters={"rope_type": "default", "rope_theta": 6.0}).rope_theta == 6.0
    old = parse(GPT_NEOX, rotary_emb_base=7, rotary_pct=0.5)
    new = parse(GPT_NEOX, rope_parameters={"rope_theta": 7, "partial_rotary_factor": 0.5})
    assert (old.rope_theta, old.rotary_dim) == (new.rope_theta, new.rotary_dim) == (7.0, 4)


def test_a_mistral_has_a_window_in_every_layer_unless_it_says_none() -> None:
    assert parse(MISTRAL, sliding_window=7).sliding_windows == (7, 7)
    assert parse(MISTRAL).sliding_windows == (4096, 4096)
    assert parse(MISTRAL, sliding_window=None).sliding_windows == ()
    assert not parse(MISTRAL, attention_bias=True).has_qkv_bias


def test_a_qwen2_has_biases_and_perhaps_windows_in_its_last_layers() -> None:
    plain = parse(QWEN2, sliding_window=7, max_window_layers=1)
    assert (plain.has_qkv_bias, plain.has_output_bias, plain.sliding_windows) == (True, False, ())
    window = {"use_sliding_window": True, "sliding_window": 7}
    assert parse(QWEN2, **window, max_window_layers=1).sliding_windows == (None, 7)
    assert parse(QWEN2, **window, max_window_layers=0).sliding_windows == (7, 7)
    assert parse(QWEN2, **window).sliding_windows == ()  # only from layer 28 on
    by_layer = parse(QWEN2, **window, layer_types=["sliding_attention", "full_attention"])
    assert (by_layer.window(0), by_layer.window(1), by_layer.window(2)) == (7, None, None)


def test_a_qwen3_normalises_queries_and_keys_and_has_heads_of_128() -> None:
    config = parse(QWEN3)
    assert (config.has_qk_norm, config.head_dim, config.has_qkv_bias) == (True, 128, False)
    assert parse(QWEN3, head_dim=32, attention_bias=True).has_output_bias


def test_scaled_rotation_is_read_from_old_and_new_places() -> None:
    for changes in (
        {"rope_scaling": {"type": "linear", "factor": 4}, "rope_theta": 6.0},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 6.0}},
    ):
        config = parse(LLAMA, **changes)
        assert (config.rope_scaling, config.rope_theta) == (LinearScaling(4.0), 6.0)
        assert config.max_position_embeddings == 4 * 512
    dynamic = parse(LLAMA, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    assert (dynamic.rope_scaling, dynamic.max_position_embeddings) == (DynamicScaling(2.0, 512), 1024)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = parse(LLAMA, rope_scaling=llama3 | {"original_max_position_embeddings": 64})
    assert (config.rope_scaling, config.max_position_embeddings) == (Llama3Scaling(8.0, 1.0, 4.0, 64), 512)


def test_yarn_sharpens_attention_as_its_config_says() -> None:
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128}
    config = parse(QWEN3, rope_scaling=yarn)
    assert config.rope_scaling == YarnScaling(8.0, 128, attention_factor=0.1 * math.log(8.0) + 1.0)
    assert config.max_position_embeddings == 1024
    assert parse(QWEN3, rope_scaling=yarn | {"factor": None}).rope_scaling == YarnScaling(
        4.0, 128, attention_factor=0.1 * math.log(4.0) + 1.0
    )
    own = parse(QWEN3, rope_scaling=yarn | {"attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2, "truncate": False})
    assert own.rope_scaling == YarnScaling(8.0, 128, attention_factor=1.5, beta_fast=16.0, beta_slow=2.0, truncate=False)
    both = parse(QWEN3, rope_scaling=yarn | {"mscale": 1.0, "mscale_all_dim": 1.0})
    assert both.rope_scaling == YarnScaling(8.0, 128, attention_factor=1.0)


def test_end_tokens_come_from_both_files_once() -> None:
    assert parse(LLAMA, {"eos_token_id": [3, 2]}).eos_token_ids == (2, 3)
    assert parse(LLAMA, eos_token_id=None).eos_token_ids == ()
    assert parse(LLAMA, bos_token_id=1).bos_token_id == 1


def test_the_model_type_decides_where_no_architecture_is_named() -> None:
    assert parse(LLAMA, architectures=None, model_type="gpt_neox").architecture is Architecture.GPT_NEOX


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"architectures": ["MixtralForCausalLM"]},
            "MixtralForCausalLM is not supported; supported are LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
            "Qwen3ForCausalLM, GPTNeoXForCausalLM",
        ),
        ({"architectures": [], "model_type": "bert"}, "model_type 'bert' is not supported"),
        (
            {"rope_scaling": {"type": "su", "factor": 2.0}},
            "rope scaling of type 'su' is not supported; supported are default, linear, dynamic, llama3, yarn",
        ),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters: low_freq_factor is None"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: factor is None, expected a positive number"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
            "low_freq_factor 4.0 is not below high_freq_factor 4.0",
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differs between kinds of layers"),
        ({"partial_rotary_factor": 0.5}, "partial rotation is not supported in this family"),
        ({"head_dim": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "needs more than 2 rotating"),
        ({"rope_scaling": [1]}, "expected an object"),
        ({"hidden_act": "relu6"}, "hidden_act 'relu6' is not supported; supported are silu"),
        ({"quantization_config": {"bits": 4}}, "quantised checkpoints"),
        ({"hidden_size": None}, "hidden_size is None, expected a positive integer"),
        ({"hidden_size": 10**30}, f"hidden_size is {10**30}, expected a positive integer"),
        ({"max_position_embeddings": 10**8}, "100000000 positions are not supported; at most 16777216 are"),
        ({"rope_theta": 10**400}, "expected a positive number"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("inf")}}, "factor is inf, expected a positive number"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_key_value_heads": 3}, "num_attention_heads 8 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 7}, "of a head of 7 is not a positive even number"),
        ({"rope_theta": -1.0}, "rope_theta is -1.0, expected a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', expected true or false"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id is"),
    ],
)
def test_what_is_wrong_or_not_supported_is_refused_by_name(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelLoadError, match=f"config.json: .*{problem}"):
        parse(LLAMA, **changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"layer_types": ["full_attention"]}, "expected one for each of 2 layers, of full_attention, sliding_attention"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"layer_types": [["full_attention"], {}]}, "expected one for each of 2 layers"),
        ({"layer_types": ["sliding_attention"] * 2}, "use_sliding_window or sliding_window is off"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window is 0, expected a positive integer"),
        ({"use_sliding_window": True, "max_window_layers": -1}, "max_window_layers is -1"),
        ({"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"] * 2}, "layer_types is not supported"),
    ],
)
def test_windows_that_are_wrong_or_not_supported_are_refused_by_name(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelLoadError, match=f"config.json: .*{problem}"):
        parse(QWEN2, **changes)


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    directory = write_tiny_llama_dir(tmp_path / "model", weights=False)
    (directory / "generation_config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
        read_architecture(directory)
