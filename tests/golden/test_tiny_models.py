"""Tiny random models of every supported shape give the numbers that transformers gives."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from aphrodited.models.causal_lm import CausalLM
from aphrodited.request import Pooling
from aphrodited.sampling_params import SamplingParams
from tests.support.engine_runs import embed, engine_of, generate, load, token_ids
from tests.support.teacher import assert_greedy, prompt_logits, teach

GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, logprobs=0)
VOCAB_SIZE = 300
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}


def llama(**options: object) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES | {"num_attention_heads": 6} | options))


def scaled_llama(rope_type: str, **options: object) -> PreTrainedModel:
    """Heads wide enough for some frequencies to be kept, some to be divided and some to be in between."""
    sizes = {key: options.pop(key) for key in SIZES.keys() & options.keys()}
    rope = {"rope_type": rope_type, "rope_theta": 500.0, **options}
    return llama(num_key_value_heads=2, head_dim=24, rope_parameters=rope, **sizes)


def mistral(**options: object) -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SIZES, num_attention_heads=6, num_key_value_heads=2, **options))


def qwen2(**options: object) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, num_attention_heads=6, num_key_value_heads=2, **options))


def qwen3(**options: object) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, num_attention_heads=4, num_key_value_heads=2, **options))


def gpt_neox(**options: object) -> PreTrainedModel:
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, num_attention_heads=3, **options))


MODELS = {
    "llama with grouped heads": lambda: llama(num_key_value_heads=2),
    "llama with one head per query, tied": lambda: llama(num_key_value_heads=6, tie_word_embeddings=True),
    "llama with biases, wide heads, another base": lambda: llama(
        num_key_value_heads=3,
        attention_bias=True,
        mlp_bias=True,
        head_dim=32,
        rope_parameters={"rope_type": "default", "rope_theta": 1234.5},
        rms_norm_eps=1e-4,
    ),
    "llama 3, scaled rotation": lambda: scaled_llama(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
    ),
    "llama with linear rotation": lambda: scaled_llama("linear", factor=4.0),
    "llama with dynamic rotation": lambda: scaled_llama("dynamic", factor=3.0, max_position_embeddings=48),
    "llama with yarn": lambda: scaled_llama("yarn", factor=4.0, original_max_position_embeddings=32),
    "llama with yarn, every number given": lambda: scaled_llama(
        "yarn",
        factor=4.0,
        original_max_position_embeddings=32,
        attention_factor=1.3,
        beta_fast=8.0,
        beta_slow=0.5,
        truncate=False,
    ),
    "mistral with a sliding window": lambda: mistral(sliding_window=21),
    "mistral without a window, wide heads": lambda: mistral(sliding_window=None, head_dim=16),
    "qwen2 with biases, tied": lambda: qwen2(tie_word_embeddings=True),
    "qwen2 with windows in its last layers": lambda: qwen2(
        use_sliding_window=True, sliding_window=16, max_window_layers=1
    ),
    "qwen2 with windows by layer type": lambda: qwen2(
        use_sliding_window=True,
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "qwen3, normalised queries and keys": lambda: qwen3(head_dim=16),
    "qwen3 with biases, a window and yarn": lambda: qwen3(
        head_dim=32,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=30,
        max_window_layers=2,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 500.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "gpt-neox with linear rotation of a part": lambda: gpt_neox(
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    ),
    "gpt-neox, parallel residual": lambda: gpt_neox(use_parallel_residual=True),
    "gpt-neox, sequential residual": lambda: gpt_neox(use_parallel_residual=False),
    "gpt-neox, full rotation, tied, no attention bias": lambda: gpt_neox(
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
        tie_word_embeddings=True,
        attention_bias=False,
        hidden_act="gelu_pytorch_tanh",
    ),
}


def randomise(model: PreTrainedModel) -> PreTrainedModel:
    """Give biases and norms values too, so that leaving one out shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from a second thread, and wait for it."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS.keys())
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, CausalLM]:
    """A model of transformers and ours, of the same files."""
    torch.manual_seed(20)
    path = tmp_path_factory.mktemp("model")
    randomise(request.param()).save_pretrained(path)
    return AutoModelForCausalLM.from_pretrained(path).eval(), load(path)


def random_prompts(count: int) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 60))] for _ in range(count)]


def test_logits_are_close_at_every_position(pair: tuple[PreTrainedModel, CausalLM]) -> None:
    teacher, model = pair
    rng = random.Random(8)
    for prompt in [*random_prompts(4), [rng.randrange(VOCAB_SIZE) for _ in range(120)]]:
        expected, _ = teach(teacher, prompt)
        torch.testing.assert_close(prompt_logits(model, prompt), expected, rtol=1e-4, atol=2e-4)


def test_greedy_tokens_are_the_same(pair: tuple[PreTrainedModel, CausalLM]) -> None:
    teacher, model = pair
    prompts = random_prompts(12)
    runs = generate(engine_of(model), prompts, GREEDY)
    for prompt, run in zip(prompts, runs, strict=True):
        assert len(run) == 32
        assert_greedy(teacher, prompt, token_ids(run))


def test_a_batch_changes_no_bit(pair: tuple[PreTrainedModel, CausalLM]) -> None:
    _, model = pair
    assert not model.nondeterminism
    prompts = random_prompts(8)
    together = generate(engine_of(model), prompts, GREEDY)
    alone = [generate(engine_of(model, enable_prefix_caching=False), [prompt], GREEDY)[0] for prompt in prompts]
    in_chunks = generate(engine_of(model, max_num_batched_tokens=16), prompts, GREEDY)
    assert together == alone == in_chunks


def test_preemption_and_cached_prefixes_change_no_bit(pair: tuple[PreTrainedModel, CausalLM]) -> None:
    _, model = pair
    prompts = random_prompts(8)
    expected = generate(engine_of(model), prompts, GREEDY)

    block_bytes = 2 * 4 * 16 * model.config.num_layers * model.config.num_kv_heads * model.config.head_dim
    num_blocks = 20 if model.config.widest_window is None else 10
    cramped = engine_of(model, kv_cache_memory=num_blocks * block_bytes)
    assert generate(cramped, prompts, GREEDY) == expected
    assert cramped.stats().num_preemptions > 0

    engine = engine_of(model)
    generate(engine, prompts, GREEDY)
    assert generate(engine, prompts, GREEDY) == expected
    assert engine.stats().num_cached_tokens > 0


@pytest.mark.parametrize("pooling", Pooling)
def test_embeddings_are_close_to_pooled_hidden_states(
    pair: tuple[PreTrainedModel, CausalLM], pooling: Pooling
) -> None:
    teacher, model = pair
    prompts = random_prompts(8)
    embeddings = embed(engine_of(model, max_num_batched_tokens=32), prompts, pooling, normalize=False)
    unit = embed(engine_of(model), prompts, pooling)
    for prompt, embedding, normalised in zip(prompts, embeddings, unit, strict=True):
        _, hidden = teach(teacher, prompt)
        expected = hidden[-1] if pooling is Pooling.LAST else hidden.mean(dim=0)
        torch.testing.assert_close(_tensor(embedding), expected, rtol=1e-4, atol=2e-4)
        torch.testing.assert_close(
            _tensor(normalised), torch.nn.functional.normalize(expected, dim=0), rtol=1e-4, atol=2e-4
        )


def _tensor(embedding: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(embedding), dtype=torch.float32)
