import torch

from aphrodited.layers.norm import LayerNorm, RMSNorm


def test_rms_norm_scales_by_the_root_of_the_mean_square() -> None:
    x, weight = torch.randn(3, 16), torch.randn(16)
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    torch.testing.assert_close(RMSNorm(weight, 1e-3)(x), expected)


def test_layer_norm_also_takes_the_mean_away() -> None:
    x, weight, bias = torch.randn(3, 16), torch.randn(16), torch.randn(16)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight + bias
    torch.testing.assert_close(LayerNorm(weight, bias, 1e-3)(x), expected)


def test_a_row_has_the_same_bits_in_every_batch() -> None:
    x, weight, bias = torch.randn(200, 576), torch.randn(576), torch.randn(576)
    for norm in (RMSNorm(weight, 1e-5), LayerNorm(weight, bias, 1e-5)):
        whole = norm(x)
        assert all(torch.equal(norm(x[n : n + 3].contiguous()), whole[n : n + 3]) for n in (0, 50, 197))
