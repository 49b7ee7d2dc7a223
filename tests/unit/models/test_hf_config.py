from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aphrodited.errors import ModelLoadError
from aphrodited.layers.linear import Activation
from aphrodited.models.config import Architecture, ModelArchitecture
from aphrodited.models.hf_config import ConfigFields, parse_architecture, read_architecture
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
    variants = (config.tie_word_embeddings, config.has_attention_bias, config.has_parallel_residual)
    assert not any(variants)


def test_a_gpt_neox_has_the_defaults_of_its_family() -> None:
    config = parse(GPT_NEOX)
    assert config.architecture is Architecture.GPT_NEOX
    assert (config.num_kv_heads, config.rotary_dim, config.norm_eps) == (8, 2, 1e-5)
    assert config.activation is Activation.GELU
    assert config.has_attention_bias
    assert config.has_parallel_residual


def test_rotation_is_read_from_old_and_new_places() -> None:
    assert parse(LLAMA, rope_theta=5.0).rope_theta == 5.0
    assert parse(LLAMA, rope_parameters={"rope_type": "default", "rope_theta": 6.0}).rope_theta == 6.0
    old = parse(GPT_NEOX, rotary_emb_base=7, rotary_pct=0.5)
    new = parse(GPT_NEOX, rope_parameters={"rope_theta": 7, "partial_rotary_factor": 0.5})
    assert (old.rope_theta, old.rotary_dim) == (new.rope_theta, new.rotary_dim) == (7.0, 4)


def test_end_tokens_come_from_both_files_once() -> None:
    assert parse(LLAMA, {"eos_token_id": [3, 2]}).eos_token_ids == (2, 3)
    assert parse(LLAMA, eos_token_id=None).eos_token_ids == ()
    assert parse(LLAMA, bos_token_id=1).bos_token_id == 1


def test_the_model_type_decides_where_no_architecture_is_named() -> None:
    assert parse(LLAMA, architectures=None, model_type="gpt_neox").architecture is Architecture.GPT_NEOX


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM is not supported; supported are LlamaForCausalLM"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "supported are LlamaForCausalLM, GPTNeoXForCausalLM"),
        ({"architectures": [], "model_type": "bert"}, "model_type 'bert' is not supported"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope scaling of type 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope scaling of type 'llama3'"),
        ({"rope_scaling": [1]}, "expected an object"),
        ({"hidden_act": "relu6"}, "hidden_act 'relu6' is not supported; supported are silu"),
        ({"quantization_config": {"bits": 4}}, "quantised checkpoints"),
        ({"hidden_size": None}, "hidden_size is None, expected a positive integer"),
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


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    directory = write_tiny_llama_dir(tmp_path / "model", weights=False)
    (directory / "generation_config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
        read_architecture(directory)
