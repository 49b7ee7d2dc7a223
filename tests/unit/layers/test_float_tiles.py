from __future__ import annotations

import numba
import numpy as np
import pytest

from aphrodited.layers.float_tiles import PANEL, TILE_ROWS, multiply_tile
from aphrodited.layers.float_weight import num_lanes

pytestmark = pytest.mark.skipif(not num_lanes(), reason="this machine has no products of our own")


def multiply(num_rows: int, rows: np.ndarray, panel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Rows from the third on, into a larger result of zeros, from its second row and fourth column on."""
    tile = multiply_tile(num_rows)

    @numba.njit
    def run(rows, panel, bias, result):  # type: ignore[no-untyped-def]
        tile(rows, 2, panel, bias, result, 1, 3)

    result = np.zeros((TILE_ROWS + 3, PANEL + 5), np.float32)
    run(rows, panel, bias, result)
    return result


@pytest.mark.parametrize("num_rows", [1, 2, TILE_ROWS])
def test_a_tile_is_the_product_and_the_bias_and_nothing_beside_it_is_touched(num_rows: int) -> None:
    rng = np.random.default_rng(0)
    rows, panel, bias = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((TILE_ROWS + 3, 100), (100, PANEL), PANEL))
    result = multiply(num_rows, rows, panel, bias)
    np.testing.assert_array_equal(result[1 : 1 + num_rows, 3 : 3 + PANEL], rows[2 : 2 + num_rows] @ panel + bias)
    result[1 : 1 + num_rows, 3 : 3 + PANEL] = 0
    assert not result.any()


@pytest.mark.parametrize("num_rows", [1, 4, TILE_ROWS])
def test_channels_are_added_in_their_order_after_the_bias(num_rows: int) -> None:
    rows = np.ones((TILE_ROWS + 3, 4), np.float32)
    panel = np.repeat(np.array([[1.0], [-(2.0**24)], [2.0**24], [3.0]], np.float32), PANEL, axis=1)
    bias = np.full(PANEL, 2.0**24, np.float32)  # so large that the first channel is lost in it
    assert (multiply(num_rows, rows, panel, bias)[1 : 1 + num_rows, 3 : 3 + PANEL] == 2.0**24 + 4).all()


@pytest.mark.parametrize("num_rows", [1, 4])
def test_a_product_is_not_rounded_before_it_is_added(num_rows: int) -> None:
    almost_one = np.float32(1 + 2.0**-23)
    rows = np.full((TILE_ROWS + 3, 1), almost_one)
    panel, bias = np.full((1, PANEL), almost_one), np.full(PANEL, -(1 + 2.0**-22), np.float32)
    assert (multiply(num_rows, rows, panel, bias)[1 : 1 + num_rows, 3 : 3 + PANEL] == np.float32(2.0**-46)).all()
