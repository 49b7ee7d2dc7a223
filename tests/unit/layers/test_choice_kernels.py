from __future__ import annotations

import numpy as np
import pytest

from aphrodited.layers.choice_kernels import CHUNK, NOT_FINITE, choose, uniform
from aphrodited.sampling.randomness import uniforms

Rows = np.ndarray


def chosen(
    logits: Rows, temperature: float = 1.0, top_p: float = 1.0, min_p: float = 0.0, seed: int = 1, num_threads: int = 1
) -> Rows:
    """Of each row, for its number as position."""
    size = len(logits)
    places = np.array([(seed, position) for position in range(size)], np.uint64)
    limits = np.array([(temperature, top_p, min_p)] * size)
    result = np.empty(size, np.int64)
    choose(num_threads, logits.astype(np.float32), limits, places, result)
    return result


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("number", [0, 1, 77])
def test_random_numbers_are_those_of_the_sampler(seed: int, number: int) -> None:
    positions = [0, 1, 12345, 2**32 + 7]
    found = [uniform(np.uint64(seed), np.uint64(position), np.uint64(number)) for position in positions]
    np.testing.assert_array_equal(found, uniforms([seed] * len(positions), positions, number))


@pytest.mark.parametrize("width", [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 1000])
def test_without_temperature_the_first_of_the_largest_is_chosen(width: int) -> None:
    rows = np.random.default_rng(0).integers(-3, 3, (20, width))
    np.testing.assert_array_equal(chosen(rows, temperature=0.0), rows.argmax(1))


@pytest.mark.parametrize("width", [1, 5, 300, 3 * CHUNK])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_cumulative_distribution_is_inverted(width: int, temperature: float) -> None:
    rows = np.random.default_rng(1).standard_normal((200, width)).astype(np.float32)
    weights = np.exp((rows.astype(np.float64) - rows.max(1, keepdims=True)) / temperature)
    cdf, u = weights.cumsum(1), uniforms([1] * 200, range(200))
    expected = (cdf <= u[:, None] * cdf[:, -1:]).sum(1)
    found = chosen(rows, temperature)
    assert (found != expected).sum() <= 1  # where u falls on a border, to seven digits
    assert np.abs(found - expected).max() <= 1


def test_what_has_no_weight_is_never_chosen() -> None:
    rows = np.full((300, 700), -np.inf)
    rows[:100, 130], rows[100:200, 699], rows[200:, 0] = -50.0, 3.0, 1e30
    np.testing.assert_array_equal(chosen(rows), np.repeat([130, 699, 0], 100))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_a_row_that_is_not_finite_is_told_from_others(bad: float, temperature: float) -> None:
    rows = np.zeros((4, 300))
    rows[1, 200] = bad
    rows[2] = -np.inf
    assert [index == NOT_FINITE for index in chosen(rows, temperature)] == [False, True, True, False]


def test_the_nucleus_is_the_smallest_set_that_reaches_the_mass() -> None:
    counts = np.bincount(chosen(np.log([[0.05, 0.4, 0.1, 0.25, 0.2]]).repeat(3000, 0), top_p=0.7), minlength=5)
    assert counts[[0, 2]].tolist() == [0, 0]
    expected = np.array([0.4, 0.25, 0.2]) / 0.85 * 3000
    assert ((counts[[1, 3, 4]] - expected) ** 2 / expected).sum() < 13.8  # 2 degrees of freedom, 0.999


def test_a_tiny_nucleus_is_the_largest() -> None:
    rows = np.random.default_rng(2).standard_normal((50, 2000))
    np.testing.assert_array_equal(chosen(rows, top_p=1e-9), rows.argmax(1))


def test_the_smallest_weights_are_left_out_by_min_p() -> None:
    rows = np.log([[0.05, 0.4, 0.1, 0.25, 0.2]]).repeat(500, 0)
    assert set(chosen(rows, min_p=0.4)) == {1, 3, 4}


def test_threads_change_nothing() -> None:
    rows = np.random.default_rng(2).standard_normal((37, 1000))
    np.testing.assert_array_equal(chosen(rows, num_threads=2), chosen(rows))
