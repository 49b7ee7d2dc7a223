"""The angles of rotary position embedding, computed once for every position a model can have.

Source: https://arxiv.org/abs/2104.09864, in the half-split layout of Hugging Face checkpoints: dimension i of the
rotary part pairs with dimension i + R / 2. The rotation itself belongs to `paged_attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_table(num_positions: int, rotary_dim: int, theta: float) -> Tensor:
    """[P, R] float32: at each position R / 2 cosines, then R / 2 sines."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim
    frequencies = 1.0 / theta**exponents  # [R / 2]
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
