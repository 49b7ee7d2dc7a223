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
    PreTrainedModel,
)

from aphrodited.models.causal_lm import CausalLM
from aphrodited.request import Pooling
from aphrodited.sampling_params import SamplingParams
from tests.support.engine_runs import embed, engine_of, generate, load, token_ids
from tests.support.teacher import assert_greedy, prompt_logits

GREEDY = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, logprobs=0)
VOCAB_SIZE = 300


def llama(**options: object) -> PreTrainedModel:
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, vocab_size=VOCAB_SIZE, max_position_embeddings=128, initializer_range=0.2, **options)
    )


def gpt_neox(**options: object) -> PreTrainedModel:
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 3}
    return GPTNeoXForCausalLM(
        GPTNeoXConfig(**sizes, vocab_size=VOCAB_SIZE, max_position_embeddings=128, initializer_range=0.2, **options)
    )


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


def test_logits_are_close(pair: tuple[PreTrainedModel, CausalLM]) -> None:
    teacher, model = pair
    for prompt in random_prompts(5):
        with torch.inference_mode():
            expected = teacher(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(prompt_logits(model, prompt), expected, rtol=1e-4, atol=2e-4)


def test_greedy_tokens_are_the_same(pair: tuple[PreTrainedModel, CausalLM]) -> None:
    teacher, model = pair
    prompts = random_prompts(20)
    runs = generate(engine_of(model), prompts, GREEDY)
    for prompt, run in zip(prompts, runs, strict=True):
        assert len(run) == 32
        assert_greedy(teacher, prompt, token_ids(run))


def test_a_batch_changes_no_bit(pair: tuple[PreTrainedModel, CausalLM]) -> None:
    _, model = pair
    assert model.deterministic
    prompts = random_prompts(12)
    together = generate(engine_of(model), prompts, GREEDY)
    alone = [generate(engine_of(model, enable_prefix_caching=False), [prompt], GREEDY)[0] for prompt in prompts]
    in_chunks = generate(engine_of(model, max_num_batched_tokens=16), prompts, GREEDY)
    assert together == alone == in_chunks


def test_preemption_and_cached_prefixes_change_no_bit(pair: tuple[PreTrainedModel, CausalLM]) -> None:
    _, model = pair
    prompts = random_prompts(12)
    expected = generate(engine_of(model), prompts, GREEDY)

    block_bytes = 2 * 4 * 16 * model.config.num_layers * model.config.num_kv_heads * model.config.head_dim
    cramped = engine_of(model, kv_cache_memory=20 * block_bytes)
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
        with torch.inference_mode():
            hidden = teacher(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0]  # after the norm
        expected = hidden[-1] if pooling is Pooling.LAST else hidden.mean(dim=0)
        torch.testing.assert_close(_tensor(embedding), expected, rtol=1e-4, atol=2e-4)
        torch.testing.assert_close(
            _tensor(normalised), torch.nn.functional.normalize(expected, dim=0), rtol=1e-4, atol=2e-4
        )


def _tensor(embedding: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(embedding), dtype=torch.float32)
