"""A request's logits are the same bits alone and in any company: batched, cut, preempted, cached, resumed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from aphrodited.layers.quantized_linear import can_quantize
from aphrodited.models.causal_lm import CausalLM
from tests.support.engine_runs import load
from tests.support.random_mixes import answers_alone, answers_in_company, random_requests
from tests.support.tiny_models import write_tiny_llama_dir, write_tiny_neox_dir

SMOLLM2_WIDTHS = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "weights": False,
}


class Case(NamedTuple):
    write: Any
    fields: dict[str, Any]
    options: dict[str, Any]
    num_mixes: int


CASES = {
    "llama": Case(write_tiny_llama_dir, {}, {}, 5),
    "gpt-neox": Case(write_tiny_neox_dir, {}, {}, 4),
    "mistral with a window": Case(
        write_tiny_llama_dir,
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 53},
        {},
        5,
    ),
    "llama as wide as SmolLM2": Case(write_tiny_llama_dir, SMOLLM2_WIDTHS, {"load_format": "dummy"}, 2),
    "llama in int8": Case(write_tiny_llama_dir, {}, {"quantization": "int8"}, 3),
    "llama in int8, as wide as SmolLM2": Case(
        write_tiny_llama_dir, SMOLLM2_WIDTHS, {"load_format": "dummy", "quantization": "int8"}, 2
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small gain nothing from a second thread, and wait for it."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[CausalLM, int]:
    """A model, and how many mixes to try on it."""
    write, fields, options, num_mixes = request.param
    if "quantization" in options and not can_quantize():
        pytest.skip("this CPU or build of torch has no int8 products")
    return load(write(tmp_path, **fields), **options), num_mixes


def test_a_request_has_the_same_bits_alone_and_in_any_company(case: tuple[CausalLM, int]) -> None:
    model, num_mixes = case
    assert not model.nondeterminism
    happened: Counter[str] = Counter()
    for seed in range(num_mixes):
        rng = random.Random(seed)
        requests = random_requests(rng, model.config.vocab_size)
        alone = answers_alone(model, requests)
        together, this_time = answers_in_company(model, requests, alone, rng)
        happened += this_time
        for key, request in enumerate(requests):
            assert together[key] == alone[key], f"mix {seed}, request {key}: {request}"
    assert set(happened) == {"resumed", "aborted", "preempted", "cached"}, "the mixes do not show what they are to show"
