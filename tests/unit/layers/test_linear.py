from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from aphrodited.layers import linear
from aphrodited.layers.linear import Activation, Linear, pad_rows

FUNCTIONS = {
    Activation.NONE: lambda x: x,
    Activation.SILU: F.silu,
    Activation.GELU: F.gelu,
    Activation.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.fixture(params=["packed", "plain"], autouse=True)
def _packing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(linear, "can_pack", lambda: False)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_projection_is_product_bias_and_activation(activation: Activation, has_bias: bool) -> None:
    x, weight, bias = torch.randn(5, 24), torch.randn(40, 24), torch.randn(40) if has_bias else None
    expected = FUNCTIONS[activation](F.linear(x, weight, bias))
    torch.testing.assert_close(Linear(weight, bias, activation=activation)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_residual_is_added_and_a_gate_multiplied(has_bias: bool) -> None:
    x, weight, other = torch.randn(5, 24), torch.randn(40, 24), torch.randn(5, 40)
    bias = torch.randn(40) if has_bias else None
    projection, expected = Linear(weight, bias), F.linear(x, weight, bias)
    kept = other.clone()
    torch.testing.assert_close(projection.add(x, other), expected + kept, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(projection.multiply(x, other), expected * kept, rtol=1e-4, atol=1e-5)
    assert torch.equal(other, kept)


def test_too_few_rows_are_followed_by_zeros() -> None:
    row = torch.randn(1, 8)
    padded = pad_rows(row, 4)
    assert padded.shape == (4, 8)
    assert torch.equal(padded[0], row[0])
    assert not padded[1:].any()
    assert pad_rows(padded, 4) is padded


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 192), (576, 1536), (1536, 576), (2048, 512), (100, 37)])
def test_exactness_is_what_is_seen(inputs: int, outputs: int) -> None:
    """A row of a projection that calls itself exact has the same bits in every place of every batch."""
    projection = Linear(torch.randn(outputs, inputs))
    if not projection.is_exact():
        return
    rows = torch.randn(300, inputs)
    whole = projection(rows)
    for first, last in ((0, 4), (7, 12), (100, 164), (1, 300)):
        assert torch.equal(projection(rows[first:last].contiguous()), whole[first:last])


def test_unpacked_projections_are_not_called_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "can_pack", lambda: False)
    assert not Linear(torch.randn(8, 8)).is_exact()
