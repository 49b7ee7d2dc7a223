from __future__ import annotations

import numpy as np
import pytest

from aphrodited.layers.kernels import Floats
from aphrodited.layers.quantization_kernels import channel_signs, group_size, quantize_row


def quantized(rows: Floats) -> tuple[Floats, Floats]:
    num_channels = rows.shape[1]
    values, steps = np.empty_like(rows), np.empty((len(rows), 1), np.float32)
    for row, result, step in zip(rows, values, steps, strict=True):
        step[0] = quantize_row(row, channel_signs(num_channels), group_size(num_channels), 127.0, result)
    return values, steps


def random_rows(num_rows: int, num_channels: int) -> Floats:
    return np.random.default_rng(0).standard_normal((num_rows, num_channels), np.float32)


def hadamard(size: int) -> Floats:
    """Source: https://en.wikipedia.org/wiki/Hadamard_matrix (Sylvester's construction)."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@pytest.mark.parametrize(("num_channels", "group"), [(576, 64), (1536, 64), (64, 64), (100, 4), (40, 8), (33, 1), (6, 2)])
def test_rows_are_mixed_in_groups_and_rounded(num_channels: int, group: int) -> None:
    rows = random_rows(3, num_channels)
    assert group_size(num_channels) == group
    grouped = (rows * channel_signs(num_channels)).reshape(3, -1, group)
    expected = (grouped @ hadamard(group)).reshape(3, -1)
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
    row = np.zeros((1, 128), np.float32)
    row[0, 69] = 7.0
    values, steps = quantized(row)
    assert not values[0, :64].any()
    np.testing.assert_array_equal(np.abs(values[0, 64:]), 127)
    np.testing.assert_allclose(steps, 7 / 127, rtol=1e-6)


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
