import math

import torch

from aphrodited.layers.rotary import rotary_table


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
