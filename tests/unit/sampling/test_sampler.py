"""Distributions are compared with exact ones by chi-square, at fixed seeds: nothing here can fail by chance."""

import random

import pytest
import torch

from aphrodited.sampling.kernel_choice import choice_kernels
from aphrodited.sampling.sampled import Sampled, SamplingRow
from aphrodited.sampling.sampler import Sampler
from aphrodited.sampling_params import SamplingParams

NUM_DRAWS = 4000
LOGITS = torch.tensor([1.0, 3.0, -torch.inf, 2.5, 0.0, 2.0, -1.0, 2.9])


@pytest.fixture(autouse=True, params=["kernels", "tensors"])
def _way(request, monkeypatch):
    """On a GPU, and without numba, tokens are chosen with tensors."""
    if request.param == "tensors":
        monkeypatch.setattr("aphrodited.sampling.sampler.choice_kernels", lambda: None)
    elif choice_kernels() is None:
        pytest.skip("there is no numba")


def sample(logits, *rows):
    """By both entrances, which must agree."""
    sampled = Sampler().sample(logits.clone(), rows)
    assert Sampler().sample_on_cpu(logits.clone().numpy(), rows) == sampled
    return sampled


def token_ids(logits, *rows):
    return [sampled.token_id for sampled in sample(logits, *rows)]


def greedy(**options):
    return SamplingRow(SamplingParams(temperature=0.0, **options), seed=0, position=0)


def exact_probabilities(temperature, top_k, top_p, min_p):
    """Straight from the definitions, one token at a time."""
    probs = (LOGITS.double() / temperature).softmax(0).tolist()
    order = sorted(range(len(probs)), key=lambda i: -probs[i])
    order = order[: top_k or len(order)]
    mass = sum(probs[i] for i in order)
    kept, before = [], 0.0
    for i in order:
        if before < top_p * mass:
            kept.append(i)
        before += probs[i]
    kept = [i for i in kept if probs[i] >= min_p * probs[order[0]]]
    total = sum(probs[i] for i in kept)
    return [probs[i] / total if i in kept else 0.0 for i in range(len(probs))]


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (3.0, 0, 1.0, 0.0),
        (1.0, 3, 1.0, 0.0),
        (1.0, 0, 0.8, 0.0),
        (2.0, 0, 0.95, 0.0),
        (1.0, 4, 0.7, 0.0),
        (1.0, 0, 1.0, 0.3),
        (1.0, 0, 0.9, 0.4),
        (1.5, 6, 0.95, 0.2),
        (1.0, 8, 0.999, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.0, 0, 0.01, 0.0),
    ],
)
def test_tokens_follow_the_exact_distribution(temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    rows = [SamplingRow(params, seed=42, position=i) for i in range(NUM_DRAWS)]
    counts = torch.tensor(token_ids(LOGITS.repeat(NUM_DRAWS, 1), *rows)).bincount(minlength=len(LOGITS)).tolist()
    expected = [p * NUM_DRAWS for p in exact_probabilities(temperature, top_k, top_p, min_p)]
    assert all(count == 0 for count, e in zip(counts, expected, strict=True) if e == 0.0)
    chi_square = sum((count - e) ** 2 / e for count, e in zip(counts, expected, strict=True) if e)
    assert chi_square < 24.4  # 7 degrees of freedom at most: 0.999 quantile 24.3


def test_zero_and_tiny_temperatures_are_greedy():
    rows = [SamplingRow(SamplingParams(temperature=t), 1, 1) for t in (0.0, 5e-324, 1e-9, 1e-5, 1e-3)]
    assert token_ids(LOGITS.repeat(5, 1), *rows) == [1] * 5


def test_equal_logits_are_decided_for_the_lowest_id():
    assert token_ids(torch.zeros(1, 50), greedy()) == [0]


def test_a_mixed_batch_gives_each_row_what_it_gets_alone():
    chooser = random.Random(3)
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(60, 50257, generator=generator) * 3
    rows = []
    for i in range(60):
        params = SamplingParams(
            temperature=chooser.choice([0.0, 0.3, 1.0, 5.0]),
            top_k=chooser.choice([0, 0, 1, 40, 70, 60000]),
            top_p=chooser.choice([1.0, 0.95, 0.3]),
            min_p=chooser.choice([0.0, 0.05]),
            logprobs=chooser.choice([None, 0, 5]),
        )
        forbidden = frozenset([chooser.randrange(50257)]) if i % 3 == 0 else frozenset()
        rows.append(SamplingRow(params, seed=chooser.randrange(2**63), position=i, forbidden_token_ids=forbidden))
    together = sample(logits, *rows)
    assert [sample(logits[i : i + 1], rows[i])[0] for i in range(60)] == together
    assert sample(logits[10:33], *rows[10:33]) == together[10:33]
    order = list(range(60))
    chooser.shuffle(order)
    shuffled = sample(logits[order], *[rows[i] for i in order])
    assert [shuffled[order.index(i)] for i in range(60)] == together


def test_forbidden_tokens_are_not_chosen_but_keep_their_logprobs():
    params = SamplingParams(temperature=0.0, logprobs=2)
    row = SamplingRow(params, 0, 0, forbidden_token_ids=frozenset([1, 7]))
    (sampled,) = sample(LOGITS[None], row)
    assert sampled.token_id == 3
    assert sampled.logprobs.rank == 3
    assert sampled.logprobs.top_token_ids == [1, 7]


def test_logprobs_are_those_of_the_unmodified_distribution():
    params = SamplingParams(temperature=0.2, top_k=2, logprobs=4)
    (sampled,) = sample(LOGITS[None], SamplingRow(params, 9, 9))
    expected = LOGITS.double().log_softmax(0)
    logprobs = sampled.logprobs
    assert logprobs.token_id == sampled.token_id
    assert logprobs.logprob == pytest.approx(expected[sampled.token_id].item(), abs=1e-5)
    assert logprobs.top_token_ids == [1, 7, 3, 5]
    assert logprobs.top_logprobs == pytest.approx(expected[[1, 7, 3, 5]].tolist(), abs=1e-5)


def test_logprobs_of_zero_alternatives_hold_the_chosen_token_alone():
    (sampled,) = sample(LOGITS[None], greedy(logprobs=0))
    assert sampled.logprobs.rank == 1
    assert sampled.logprobs.top_token_ids == []


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.5, min_p=0.1, logprobs=3),
    ],
)
def test_a_row_that_is_not_finite_fails_alone(bad, params):
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(0))
    good = sample(logits, *[SamplingRow(params, 5, i) for i in range(3)])
    logits[1, 77] = bad
    mixed = sample(logits, *[SamplingRow(params, 5, i) for i in range(3)])
    assert mixed[1] == Sampled(None)
    assert [mixed[0], mixed[2]] == [good[0], good[2]]


def test_a_row_with_nothing_left_to_choose_fails():
    row = SamplingRow(SamplingParams(), 0, 0, forbidden_token_ids=frozenset(range(8)))
    assert token_ids(LOGITS[None], row) == [None]


def test_top_k_beyond_the_vocabulary_is_off():
    rows = [SamplingRow(SamplingParams(top_k=k), 4, i) for k in (0, 8, 500) for i in range(20)]
    chosen = token_ids(LOGITS.repeat(60, 1), *rows)
    assert chosen[:20] == chosen[20:40] == chosen[40:]
