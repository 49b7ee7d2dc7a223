import pytest
import torch

from aphrodited.sampling.draw import argmax, draw, draw_nucleus


@pytest.mark.parametrize("width", [1, 5, 127, 128, 129, 1000])
def test_argmax_is_the_lowest_index_of_the_maximum(width):
    rows = torch.randint(0, 5, (7, width)).float()
    assert argmax(rows).tolist() == [row.index(max(row)) for row in rows.tolist()]


def test_argmax_finds_nan():
    rows = torch.zeros(2, 300)
    rows[1, 200] = torch.nan
    assert argmax(rows)[1] == 200


@pytest.mark.parametrize("width", [1, 5, 128, 300])
def test_draw_inverts_the_cumulative_distribution(width):
    weights = torch.rand(50, width, dtype=torch.float32)
    u = torch.rand(50, dtype=torch.float64)
    cdf = weights.double().cumsum(-1)
    expected = (cdf <= u[:, None] * cdf[:, -1:]).sum(-1)
    assert (draw(weights, u) - expected).abs().max() <= (1 if width > 128 else 0)


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-52])
def test_draw_never_returns_an_index_without_weight(u):
    weights = torch.zeros(3, 400)
    weights[0, 130] = 1e-30
    weights[1, 399] = 3.0
    weights[2, 0] = 1e30
    assert draw(weights, torch.full((3,), u, dtype=torch.float64)).tolist() == [130, 399, 0]


def test_the_nucleus_is_the_smallest_set_that_reaches_the_mass():
    probs = torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2]).repeat(3000, 1)
    generator = torch.Generator().manual_seed(1)
    numbers = [torch.rand(3000, dtype=torch.float64, generator=generator) for _ in range(6)]
    drawn = draw_nucleus(probs, torch.full((3000,), 0.7, dtype=torch.float64), lambda rows, n: numbers[n][rows])
    counts = drawn.bincount(minlength=5)
    assert counts[[0, 2]].tolist() == [0, 0]
    expected = torch.tensor([0.4, 0.25, 0.2]) / 0.85 * 3000
    assert ((counts[[1, 3, 4]] - expected) ** 2 / expected).sum() < 13.8  # 2 degrees of freedom, 0.999


def test_a_tiny_nucleus_is_the_most_likely_index():
    probs = torch.rand(20, 500).softmax(-1)
    numbers = torch.rand(500, 20, dtype=torch.float64)
    drawn = draw_nucleus(probs, torch.full((20,), 1e-6, dtype=torch.float64), lambda rows, n: numbers[n][rows])
    assert drawn.tolist() == probs.argmax(-1).tolist()
