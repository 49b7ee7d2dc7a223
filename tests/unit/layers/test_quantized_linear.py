from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aphrodited.layers.linear import Activation
from aphrodited.layers.quantized_linear import QuantizedLinear, can_quantize

pytestmark = pytest.mark.skipif(not can_quantize(), reason="this machine has no int8 products")

FUNCTIONS = {
    Activation.NONE: lambda x: x,
    Activation.SILU: F.silu,
    Activation.GELU: F.gelu,
    Activation.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
}


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_projection_is_close_to_product_bias_and_activation(activation: Activation, has_bias: bool) -> None:
    x, weight, bias = torch.randn(5, 64), torch.randn(40, 64), torch.randn(40) if has_bias else None
    expected = FUNCTIONS[activation](F.linear(x, weight, bias))
    assert relative_error(QuantizedLinear(weight, bias, activation=activation)(x), expected) < 0.03


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_residual_is_added_and_a_gate_multiplied(has_bias: bool) -> None:
    x, weight, other = torch.randn(5, 64), torch.randn(40, 64), torch.randn(5, 40)
    bias = torch.randn(40) if has_bias else None
    projection, plain, kept = QuantizedLinear(weight, bias), F.linear(x, weight, bias), other.clone()
    assert relative_error(projection.add(x, other), plain + kept) < 0.03
    assert relative_error(projection.multiply(x, other), plain * kept) < 0.03
    assert torch.equal(other, kept)


def test_values_that_int8_holds_are_multiplied_exactly() -> None:
    weight = torch.randint(-127, 128, (16, 33)).float()  # an odd number of channels is not mixed
    weight[:, 0] = 127  # every row's largest value is the largest that is held
    x = torch.randint(-1, 2, (3, 33)).float()
    torch.testing.assert_close(QuantizedLinear(weight)(x), x @ weight.T, rtol=1e-5, atol=0.01)


def test_the_largest_values_of_all_do_not_overflow() -> None:
    projection = QuantizedLinear(torch.full((16, 513), 1.0))
    torch.testing.assert_close(projection(torch.full((2, 513), -3.0)), torch.full((2, 16), -1539.0), rtol=1e-5, atol=0.0)


def test_one_large_channel_leaves_the_others_their_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(5, 64, generator=generator), torch.randn(40, 64, generator=generator)
    x[:, 7] *= 300.0
    weight[:, 7] /= 300.0
    steps = x.abs().amax(1, keepdim=True) / 127
    rounded_as_it_is = (x / steps).round() * steps
    expected = x @ weight.T
    assert relative_error(QuantizedLinear(weight)(x), expected) < 0.5 * relative_error(rounded_as_it_is @ weight.T, expected)


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 192), (576, 1536), (1536, 576), (100, 37)])
def test_a_row_has_the_same_bits_whatever_is_beside_it(inputs: int, outputs: int) -> None:
    projection = QuantizedLinear(torch.randn(outputs, inputs), torch.randn(outputs))
    assert projection.is_exact()
    rows = torch.randn(300, inputs) * torch.logspace(-3, 3, 300)[:, None]
    whole = projection(rows)
    for first, last in ((0, 1), (7, 10), (100, 164), (1, 300)):
        assert torch.equal(projection(rows[first:last].contiguous()), whole[first:last])


def test_a_row_that_is_not_finite_keeps_that_to_itself() -> None:
    projection = QuantizedLinear(torch.randn(16, 32))
    rows = torch.randn(3, 32)
    expected = projection(rows)
    rows[1, 5] = torch.nan
    result = projection(rows)
    assert not result[1].isfinite().any()
    assert torch.equal(result[[0, 2]], expected[[0, 2]])


def test_zeros_stay_zeros() -> None:
    assert not QuantizedLinear(torch.randn(16, 32))(torch.zeros(2, 32)).any()
    assert not QuantizedLinear(torch.zeros(16, 32))(torch.randn(2, 32)).any()
