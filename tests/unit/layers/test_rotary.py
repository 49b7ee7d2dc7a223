import math

import pytest
import torch

from aphrodited.layers.rotary import (
    DynamicScaling,
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
    rotary_table,
    yarn_attention_factor,
)


def test_the_first_position_does_not_rotate() -> None:
    table = rotary_table(4, 8, 10000.0)
    assert table.shape == (4, 8)
    assert torch.equal(table[0], torch.tensor([1.0] * 4 + [0.0] * 4))


def test_angles_are_position_times_a_falling_frequency() -> None:
    table = rotary_table(100, 8, 500.0)
    for position in (1, 37, 99):
        for pair in range(4):
            angle = position * 500.0 ** (-2 * pair / 8)
            assert math.isclose(table[position, pair], math.cos(angle), abs_tol=1e-5)
            assert math.isclose(table[position, 4 + pair], math.sin(angle), abs_tol=1e-5)


def test_linear_scaling_slows_every_pair_down() -> None:
    assert torch.allclose(rotary_table(65, 8, 500.0, LinearScaling(4.0))[64], rotary_table(17, 8, 500.0)[16], atol=1e-6)


def test_factors_slow_each_pair_down_by_its_own() -> None:
    table, plain = rotary_table(9, 4, 500.0, FactorScaling((1.0, 8.0))), rotary_table(9, 4, 500.0)
    assert torch.equal(table[8, [0, 2]], plain[8, [0, 2]])
    assert torch.allclose(table[8, [1, 3]], plain[1, [1, 3]])


@pytest.mark.parametrize(
    "scaling",
    [Llama3Scaling(8.0, 1.0, 4.0, original_length=64), YarnScaling(8.0, original_length=64, attention_factor=1.0)],
)
def test_fast_pairs_keep_their_frequency_and_slow_ones_are_divided(scaling: RopeScaling) -> None:
    table, plain = rotary_table(9, 64, 10000.0, scaling), rotary_table(9, 64, 10000.0)
    assert torch.equal(table[:, 0], plain[:, 0])
    assert torch.allclose(table[8, [31, 63]], plain[1, [31, 63]])
    angles, limits = table[8, 32:].asin(), (plain[1, 32:].asin(), plain[8, 32:].asin())
    in_between = (angles > limits[0] * 1.01) & (angles < limits[1] * 0.99)
    assert in_between[8:].any()


def test_yarn_lengthens_what_it_rotates() -> None:
    scaling = YarnScaling(4.0, original_length=64, attention_factor=yarn_attention_factor(4.0))
    assert math.isclose(rotary_table(1, 8, 10000.0, scaling)[0, 0], 0.1 * math.log(4.0) + 1.0, rel_tol=1e-6)
    assert yarn_attention_factor(0.5) == 1.0


def test_dynamic_scaling_begins_beyond_the_trained_length_and_leaves_the_fastest_pair_alone() -> None:
    table, plain = rotary_table(96, 8, 500.0, DynamicScaling(2.0, original_length=64)), rotary_table(96, 8, 500.0)
    assert torch.equal(table[:64], plain[:64])
    assert torch.equal(table[:, [0, 4]], plain[:, [0, 4]])
    slowest = float(table[95, 7].asin())
    assert math.isclose(slowest, 95 * (500.0 * (2 * 96 / 64 - 1) ** (8 / 6)) ** (-6 / 8), rel_tol=1e-4)
    assert torch.equal(rotary_table(80, 8, 500.0, DynamicScaling(2.0, original_length=64)), table[:80])
