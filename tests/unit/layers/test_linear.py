from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aphrodited.layers import linear
from aphrodited.layers.linear import Activation, Linear, has_kernels, is_row_exact

FUNCTIONS = {
    Activation.NONE: lambda x: x,
    Activation.SILU: F.silu,
    Activation.GELU: F.gelu,
    Activation.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
}


needs_kernels = pytest.mark.skipif(not has_kernels(), reason="this machine has no products of our own")


@pytest.fixture(params=["own", "torch"])
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(linear, "has_kernels", lambda: False)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_projection_is_product_bias_and_activation(activation: Activation, has_bias: bool) -> None:
    x, weight, bias = torch.randn(5, 24), torch.randn(40, 24), torch.randn(40) if has_bias else None
    expected = FUNCTIONS[activation](F.linear(x, weight, bias))
    torch.testing.assert_close(Linear(weight, bias, activation=activation)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_residual_is_added_and_a_gate_multiplied(has_bias: bool) -> None:
    x, weight, other = torch.randn(5, 24), torch.randn(40, 24), torch.randn(5, 40)
    bias = torch.randn(40) if has_bias else None
    projection, expected = Linear(weight, bias), F.linear(x, weight, bias)
    kept = other.clone()
    torch.testing.assert_close(projection.add(x, other), expected + kept, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(projection.multiply(x, other), expected * kept, rtol=1e-4, atol=1e-5)
    assert torch.equal(other, kept)


@needs_kernels
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 192), (576, 1536), (1536, 576), (2048, 512), (100, 37), (1, 1)])
def test_a_row_has_the_same_bits_whatever_is_beside_it(inputs: int, outputs: int) -> None:
    projection = Linear(torch.randn(outputs, inputs), torch.randn(outputs))
    rows, other = torch.randn(300, inputs), torch.randn(300, outputs)
    whole = projection.add(rows, other)
    for first, last in ((0, 1), (0, 4), (3, 10), (7, 12), (100, 164), (1, 300)):
        part = projection.add(rows[first:last], other[first:last])
        assert torch.equal(part, whole[first:last])
    assert projection.is_exact()
    assert is_row_exact(projection)


@needs_kernels
def test_rows_that_do_not_lie_together_are_multiplied_too() -> None:
    projection, wide = Linear(torch.randn(40, 24)), torch.randn(24, 5)
    assert torch.equal(projection(wide.T), projection(wide.T.contiguous()))


@needs_kernels
def test_a_row_that_is_not_finite_keeps_that_to_itself() -> None:
    projection, rows = Linear(torch.randn(16, 32)), torch.randn(3, 32)
    expected = projection(rows)
    rows[1, 5] = torch.nan
    result = projection(rows)
    assert not result[1].isfinite().any()
    assert torch.equal(result[[0, 2]], expected[[0, 2]])


def test_projections_that_torch_computes_are_not_called_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "has_kernels", lambda: False)
    assert not Linear(torch.randn(8, 8)).is_exact()
