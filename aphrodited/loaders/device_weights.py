"""A checkpoint's Weights for a device other than the CPU: the same tensors there, in the model's format.

With them come the projections and the attention that take such tensors. Knows no format of files.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from aphrodited.layers.device_attention import DeviceAttention
from aphrodited.layers.device_linear import DeviceLinear
from aphrodited.layers.embedding import DeviceEmbedding, Embedding
from aphrodited.layers.linear import Activation, Projection
from aphrodited.layers.paged_attention import MakeAttention
from aphrodited.models.weights import ReadWeight, Weights


class DeviceWeights:
    """Moves each tensor of other Weights when it is taken; an embedding that is the head too is moved once."""

    def __init__(self, weights: Weights, device: torch.device, dtype: torch.dtype) -> None:
        self.make_attention: MakeAttention = partial(DeviceAttention, device=device, dtype=dtype)
        self._weights = weights
        self._device = device
        self._dtype = dtype
        self._tables: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        table = self._tables.get(name)
        return self._weights.take(name, shape).to(self._device, self._dtype) if table is None else table

    def take_embedding(self, name: str, shape: tuple[int, int]) -> Embedding:
        self._tables[name] = self.take(name, shape)
        return DeviceEmbedding(self._tables[name])

    def project(self, name: str, read: ReadWeight, activation: Activation = Activation.NONE) -> Projection:
        return DeviceLinear(*read(), activation=activation)
