import torch

from aphrodited.layers.norm import MIN_PARALLEL_VALUES, LayerNorm, QKNorm, RMSNorm


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


def test_queries_and_keys_are_normalised_head_by_head_and_values_are_not() -> None:
    torch.manual_seed(3)
    query_weight, key_weight, qkv = torch.randn(8), torch.randn(8), torch.randn(3, 6 * 8)
    heads = QKNorm(query_weight, key_weight, num_heads=3, num_kv_heads=1, eps=1e-5)(qkv.clone()).view(3, 6, 8)
    before = qkv.view(3, 6, 8)
    for head in range(3):
        torch.testing.assert_close(heads[:, head], RMSNorm(query_weight, 1e-5)(before[:, head]))
    torch.testing.assert_close(heads[:, 3], RMSNorm(key_weight, 1e-5)(before[:, 3]))
    assert torch.equal(heads[:, 4:], before[:, 4:])


def test_a_row_of_queries_and_keys_has_the_same_bits_in_any_batch() -> None:
    torch.manual_seed(4)
    norm, rows = QKNorm(torch.randn(64), torch.randn(64), num_heads=9, num_kv_heads=3, eps=1e-6), torch.randn(200, 15 * 64)
    whole = norm(rows.clone())
    for count in (1, 2, 3, 33, 100):
        assert torch.equal(norm(rows[:count].clone()), whole[:count])


def test_many_rows_are_normalised_by_several_threads_to_the_same_bits() -> None:
    torch.manual_seed(5)
    weight, rows = torch.randn(64), torch.randn(MIN_PARALLEL_VALUES // 64, 64)
    norm = RMSNorm(weight, 1e-5)
    whole = norm(rows)
    assert torch.equal(norm(rows[7:9].contiguous()), whole[7:9])
    torch.testing.assert_close(whole, torch.nn.functional.rms_norm(rows, (64,), weight, 1e-5))
