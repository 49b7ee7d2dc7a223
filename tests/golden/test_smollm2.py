"""The demo model, out of its quantised file, answers as transformers does with the same widened weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from aphrodited.loaders.gguf_checkpoint import GgufCheckpoint
from aphrodited.models.causal_lm import CausalLM
from aphrodited.sampling_params import SamplingParams
from aphrodited.tokenizer.tokenizer import load_tokenizer
from tests.support.engine_runs import Run, engine_of, generate, load, token_ids
from tests.support.teacher import assert_greedy, prompt_logits

PATH = Path(__file__).parents[2] / "var" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, logprobs=0)
TEXTS = [
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "The three laws of motion are",
    "1, 2, 3, 5, 8, 13,",
    "SELECT name FROM users WHERE",
    "Dear Sir or Madam,",
    "The mitochondria is",
    "In 1969, the first human",
    "To make a good cup of tea, you need",
    "The opposite of hot is",
    "import numpy as np\n",
    "Roses are red,",
    "The largest planet of the solar system is",
    "A list of fruits: apple, banana,",
    "Why is the sky blue?",
    "O Romeo, Romeo, wherefore",
    "The sum of 12 and 30 is",
    "Bonjour, je m'appelle",
]

pytestmark = [
    pytest.mark.skipif(not PATH.exists(), reason="the demo model is not here; scripts/run fetches it"),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def model() -> CausalLM:
    return load(PATH)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(PATH)
    return [tokenizer.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def runs(model: CausalLM, prompts: list[list[int]]) -> list[Run]:
    return generate(engine_of(model, max_model_len=512), prompts, GREEDY)


@pytest.fixture(scope="module")
def teacher() -> LlamaForCausalLM:
    checkpoint = GgufCheckpoint(PATH)
    shape = checkpoint.config
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_position_embeddings,
        rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
    )
    weights = {name: checkpoint.read(name) for name in checkpoint.shapes}
    with torch.device("meta"):
        teacher = LlamaForCausalLM(config)
    teacher.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}, assign=True)
    teacher.model.rotary_emb = type(teacher.model.rotary_emb)(config)  # its buffers are in no checkpoint
    return teacher.eval()


def test_greedy_answers_are_those_of_transformers(
    teacher: LlamaForCausalLM, prompts: list[list[int]], runs: list[Run]
) -> None:
    for prompt, run in zip(prompts, runs, strict=True):
        assert len(run) == 64
        assert_greedy(teacher, prompt, token_ids(run))


def test_logits_are_close(teacher: LlamaForCausalLM, model: CausalLM, prompts: list[list[int]], runs: list[Run]) -> None:
    whole = prompts[0] + token_ids(runs[0])
    with torch.inference_mode():
        expected = teacher(torch.tensor([whole])).logits[0]
    torch.testing.assert_close(prompt_logits(model, whole), expected, rtol=1e-3, atol=1e-3)


def test_a_prompt_alone_or_in_chunks_gives_the_same_bits(
    model: CausalLM, prompts: list[list[int]], runs: list[Run]
) -> None:
    longest = max(range(len(prompts)), key=lambda i: len(prompts[i]))
    alone = engine_of(model, max_model_len=512, max_num_batched_tokens=16, enable_prefix_caching=False)
    for i in {0, longest}:
        assert generate(alone, [prompts[i]], GREEDY) == [runs[i]]
