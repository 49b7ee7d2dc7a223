from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from aphrodited.layers.kernel_math import exponential, gelu, gelu_tanh, silu

Values = NDArray[np.float32]


def everywhere(function: Any) -> Callable[[Values], Values]:
    """The function in a loop, as kernels call it."""

    @numba.njit(error_model="numpy")
    def run(values, results):  # type: ignore[no-untyped-def]
        for i in range(values.shape[0]):
            results[i] = function(values[i])

    def apply(values: Values) -> Values:
        results = np.empty_like(values)
        run(values, results)
        return results

    return apply


def test_the_exponential_is_right_to_the_last_digits() -> None:
    values = np.linspace(-86.9, 87.9, 100_001, dtype=np.float32)
    np.testing.assert_allclose(everywhere(exponential)(values), np.exp(values.astype(np.float64)), rtol=2.5e-7)


def test_the_exponential_of_what_is_out_of_range_is_that_of_its_end() -> None:
    run = everywhere(exponential)
    np.testing.assert_array_equal(run(np.float32([-1e30, -np.inf, 1e30, np.inf])), run(np.float32([-87, -87, 88, 88])))


@pytest.mark.parametrize(
    ("function", "expected"),
    [(silu, F.silu), (gelu, F.gelu), (gelu_tanh, lambda x: F.gelu(x, approximate="tanh"))],
    ids=["silu", "gelu", "gelu_tanh"],
)
def test_activations_are_those_of_torch(function: Any, expected: Callable[[torch.Tensor], torch.Tensor]) -> None:
    values = np.concatenate([np.linspace(-12, 12, 50_001), [-300, 300, 0, 1e-20]]).astype(np.float32)
    exact = expected(torch.from_numpy(values).double()).numpy()
    np.testing.assert_allclose(everywhere(function)(values), exact, rtol=1e-5, atol=5e-7)
    assert np.isnan(everywhere(function)(np.float32([np.nan]))).all()


@pytest.mark.parametrize("function", [exponential, silu, gelu, gelu_tanh], ids=["exponential", "silu", "gelu", "gelu_tanh"])
def test_a_value_has_the_same_bits_wherever_it_stands(function: Any) -> None:
    values = np.random.default_rng(0).standard_normal(100, np.float32) * 5
    run = everywhere(function)
    whole = run(values)
    for first, last in ((0, 1), (3, 10), (17, 100), (99, 100)):
        np.testing.assert_array_equal(run(values[first:last].copy()), whole[first:last])
