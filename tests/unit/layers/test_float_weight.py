from __future__ import annotations

import numpy as np
import pytest
import torch

from aphrodited.layers.float_weight import empty_weight, num_lanes, pack_panels
from aphrodited.layers.huge_pages import HugePageArena

pytestmark = pytest.mark.skipif(not num_lanes(), reason="this machine has no products of our own")


@pytest.mark.parametrize(("num_outputs", "num_channels"), [(1, 1), (37, 100), (320, 64)])
def test_panels_hold_a_weight_channel_by_channel_and_zeros_beyond(num_outputs: int, num_channels: int) -> None:
    weight, bias = torch.randn(num_outputs, num_channels), torch.randn(num_outputs)
    packed = empty_weight(num_outputs, num_channels, bias, HugePageArena())
    packed.panels[...] = 7.0
    pack_panels(weight, packed.panels)
    outputs = packed.panels.transpose(0, 2, 1).reshape(-1, num_channels)
    np.testing.assert_array_equal(outputs[:num_outputs], weight.numpy())
    np.testing.assert_array_equal(packed.bias.reshape(-1)[:num_outputs], bias.numpy())
    assert not outputs[num_outputs:].any()
    assert not packed.bias.reshape(-1)[num_outputs:].any()


def test_the_panels_of_a_model_lie_side_by_side_where_a_register_can_load_them() -> None:
    arena = HugePageArena()
    first, second = (empty_weight(40, 3, None, arena).panels for _ in range(2))
    assert first.ctypes.data % 64 == second.ctypes.data % 64 == 0
    assert 0 < second.ctypes.data - first.ctypes.data < 2 * first.nbytes
