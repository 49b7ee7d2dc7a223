"""Arithmetic of what a model's products cost, and the shares made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aphrodited.bench import machine
from aphrodited.bench.machine import Cost, cost_of, measure_once
from aphrodited.bench.modes import Figures, Mode
from aphrodited.bench.workload import Workload
from aphrodited.loaders.dummy import dummy_architecture
from aphrodited.models.config import Architecture

PYTHIA = "EleutherAI/pythia-70m-deduped"


def test_the_weights_of_pythia_70m_are_counted_as_its_published_ones() -> None:
    cost = cost_of(dummy_architecture(Path(PYTHIA)))
    assert cost.layer_weights == 18_874_368  # 18.9 million without embeddings, biases and norms
    assert cost.head_weights == 512 * 50304


def test_a_gated_feed_forward_has_a_third_matrix() -> None:
    neox = dummy_architecture(Path(PYTHIA))
    llama = replace(neox, architecture=Architecture.LLAMA)
    difference = cost_of(llama).layer_weights - cost_of(neox).layer_weights
    assert difference == neox.num_layers * neox.hidden_size * neox.intermediate_size


def test_a_prompt_pays_logits_once_and_attention_by_the_square() -> None:
    assert Cost(100, 7, 0).prefill_flop(2, 10) == 2 * 2 * (10 * 100 + 7)
    assert Cost(0, 0, 3).prefill_flop(1, 10) == 2 * 3 * 10 * 11  # two products over 55 pairs


def test_shares_are_of_what_the_machine_does_in_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(mode: Mode, workload: Workload) -> Figures:
        return Figures(elapsed_s=2.0 if workload.num_prompts > 1 else 4.0, cpu_s=0.0)

    monkeypatch.setattr(machine, "measure", measure)
    monkeypatch.setattr(machine, "product_rate", lambda: 1e6)
    monkeypatch.setattr(machine, "reading_rate", lambda: 1e5)
    prefill = Workload(model=PYTHIA, num_prompts=2, input_len=10, output_len=1)
    decode = Workload(model=PYTHIA, num_prompts=1, input_len=8, output_len=100, quantization="int8")
    figures = measure_once(prefill, decode, Cost(1000, 200, 0))
    assert figures["prefill_tokens_per_second"] == 10
    assert figures["prefill_share_of_sgemm"] == pytest.approx(2 * 2 * (10_000 + 200) / 2.0 / 1e6)
    assert figures["decode_tokens_per_second"] == 25
    assert figures["decode_share_of_reading"] == pytest.approx(25 * 1200 / 1e5)
