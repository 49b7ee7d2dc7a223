from __future__ import annotations

import numpy as np
import pytest

from aphrodited.layers.quantization_kernels import Floats, group_size, signs, stretch, stretch_parallel


def stretched(rows: Floats) -> tuple[Floats, Floats]:
    result, largest = np.empty_like(rows), np.empty((len(rows), 1), np.float32)
    stretch(rows, signs(rows.shape[1]), group_size(rows.shape[1]), result, largest)
    return result, largest


def random_rows(num_rows: int, num_channels: int) -> Floats:
    return np.random.default_rng(0).standard_normal((num_rows, num_channels), np.float32)


def hadamard(size: int) -> Floats:
    """Source: https://en.wikipedia.org/wiki/Hadamard_matrix (Sylvester's construction)."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@pytest.mark.parametrize(("num_channels", "group"), [(576, 64), (1536, 64), (2048, 64), (100, 4), (40, 8), (33, 1), (6, 2)])
def test_rows_are_mixed_in_groups_and_stretched(num_channels: int, group: int) -> None:
    rows = random_rows(3, num_channels)
    assert group_size(num_channels) == group
    grouped = (rows * signs(num_channels)).reshape(3, group, -1)
    expected = np.einsum("ij,rjb->rib", hadamard(group), grouped).reshape(3, -1)
    result, largest = stretched(rows)
    np.testing.assert_allclose(np.abs(result).max(1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(result * largest, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_channels", [576, 33])
def test_products_of_rows_are_kept_but_for_the_group(num_channels: int) -> None:
    first, second = random_rows(4, num_channels), random_rows(5, num_channels)
    (a, a_scale), (b, b_scale) = stretched(first), stretched(second)
    product = (a * a_scale) @ (b * b_scale).T / group_size(num_channels)
    np.testing.assert_allclose(product, first @ second.T, rtol=1e-3, atol=1e-3)


def test_an_outlier_is_given_to_its_whole_group() -> None:
    row = np.zeros((1, 64), np.float32)
    row[0, 5] = 7.0
    result, largest = stretched(row)
    np.testing.assert_array_equal(np.abs(result), 1.0)
    assert largest == 7.0


def test_threads_change_nothing() -> None:
    rows = random_rows(101, 576)
    expected, expected_largest = stretched(rows)
    result, largest = np.empty_like(rows), np.empty((len(rows), 1), np.float32)
    stretch_parallel(rows, signs(576), group_size(576), result, largest, 3)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(largest, expected_largest)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_visible(value: float) -> None:
    rows = random_rows(3, 64)
    rows[1, 9] = value
    _, largest = stretched(rows)
    assert list(np.isfinite(largest[:, 0])) == [True, False, True]


def test_zeros_stay_zeros() -> None:
    result, largest = stretched(np.zeros((2, 64), np.float32))
    assert not result.any()
    assert not largest.any()
