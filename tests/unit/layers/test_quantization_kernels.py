from __future__ import annotations

import numpy as np
import pytest

from aphrodited.layers.quantization_kernels import (
    Floats,
    group_size,
    multiply_row,
    quantize,
    quantize_parallel,
    signs,
)


def quantized(rows: Floats) -> tuple[Floats, Floats]:
    values, steps = np.empty_like(rows), np.empty((len(rows), 1), np.float32)
    quantize(rows, signs(rows.shape[1]), group_size(rows.shape[1]), 127.0, values, steps)
    return values, steps


def random_rows(num_rows: int, num_channels: int) -> Floats:
    return np.random.default_rng(0).standard_normal((num_rows, num_channels), np.float32)


def hadamard(size: int) -> Floats:
    """Source: https://en.wikipedia.org/wiki/Hadamard_matrix (Sylvester's construction)."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@pytest.mark.parametrize(("num_channels", "group"), [(576, 64), (1536, 64), (2048, 64), (100, 4), (40, 8), (33, 1), (6, 2)])
def test_rows_are_mixed_in_groups_and_rounded(num_channels: int, group: int) -> None:
    rows = random_rows(3, num_channels)
    assert group_size(num_channels) == group
    grouped = (rows * signs(num_channels)).reshape(3, group, -1)
    expected = np.einsum("ij,rjb->rib", hadamard(group), grouped).reshape(3, -1)
    values, steps = quantized(rows)
    np.testing.assert_array_equal(values, np.rint(values))
    np.testing.assert_array_equal(np.abs(values).max(1), 127)
    assert (np.abs(values * steps - expected) <= 0.501 * steps).all()


@pytest.mark.parametrize("num_channels", [576, 33])
def test_products_of_rows_are_kept_but_for_the_group(num_channels: int) -> None:
    first, second = random_rows(4, num_channels), random_rows(5, num_channels)
    (a, a_steps), (b, b_steps) = quantized(first), quantized(second)
    product = (a * a_steps) @ (b * b_steps).T / group_size(num_channels)
    expected = first @ second.T
    assert np.linalg.norm(product - expected) < 0.03 * np.linalg.norm(expected)


def test_an_outlier_is_given_to_its_whole_group() -> None:
    row = np.zeros((1, 64), np.float32)
    row[0, 5] = 7.0
    values, steps = quantized(row)
    np.testing.assert_array_equal(np.abs(values), 127)
    np.testing.assert_allclose(steps, 7 / 127, rtol=1e-6)


def test_threads_change_nothing() -> None:
    rows = random_rows(101, 576)
    expected, expected_steps = quantized(rows)
    values, steps = np.empty_like(rows), np.empty((len(rows), 1), np.float32)
    quantize_parallel(rows, signs(576), group_size(576), 127.0, values, steps, 3)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(steps, expected_steps)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_visible(value: float) -> None:
    rows = random_rows(3, 64)
    rows[1, 9] = value
    _, steps = quantized(rows)
    assert list(np.isfinite(steps[:, 0])) == [True, False, True]


def test_zeros_stay_zeros() -> None:
    values, steps = quantized(np.zeros((2, 64), np.float32))
    assert not values.any()
    assert not steps.any()


def test_one_row_is_multiplied_as_integers() -> None:
    row, weight = random_rows(1, 100), np.random.default_rng(1).integers(-127, 128, (37, 100), np.int8)
    weight_steps, result = np.abs(random_rows(1, 37))[0], np.empty(37, np.float32)
    multiply_row(row[0], signs(100), group_size(100), 127.0, weight, weight_steps, 1, result)
    (values, steps) = quantized(row)
    expected = (weight.astype(np.int64) @ values[0].astype(np.int64)).astype(np.float32) * weight_steps * steps[0]
    np.testing.assert_array_equal(result, expected)
