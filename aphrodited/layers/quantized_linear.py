"""Linear projections over int8 weights, by kernels of our own for the int8 instructions of CPUs.

Weights have one scale for each output, activations one for each row, taken when it comes: a row's numbers must not
depend on its neighbours. What is summed are integers, which is exact in any order. Knows no names, files or models.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.layers.huge_pages import HugePageArena
from aphrodited.layers.int8_weight import Int8Weight, pack_weight
from aphrodited.layers.linear import Activation, finish_kernels, finish_of, is_row_exact

MIN_PARALLEL_PRODUCTS = 4 * 1024**2  # fewer are computed in less time than it takes to wake a second thread
MIN_SHARED_ROWS = 48  # fewer rows are not shared by threads: each takes its part of the weight then


def can_quantize() -> bool:
    """Whether this installation and CPU offer int8 products."""
    return find_spec("numba") is not None and _kernels().instructions is not None


def compile_kernels() -> None:
    """Run every kernel once, so that the first engine after an installation starts at once."""
    if can_quantize():
        for num_outputs in (1, MIN_PARALLEL_PRODUCTS // 8):
            QuantizedLinear(torch.ones(num_outputs, 8))(torch.ones(1, 8))


@cache
def _kernels() -> ModuleType:
    """Imported late: where they are kept is settled by the first PagedAttention, see paged_attention.load_kernels."""
    from aphrodited.layers import int8_kernels

    return int8_kernels


class QuantizedLinear:
    """A Projection whose weight and activations are rounded to int8. The weights of one model share an arena.

    finish: what follows the product, as finish_kernels call it.
    """

    LAYOUT = "panels of int8"
    """What `kept` holds; another word for it if that changes."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: Activation = Activation.NONE,
        arena: HugePageArena | None = None,
    ) -> None:
        packed = pack_weight(
            weight.contiguous().numpy(),
            None if bias is None else bias.numpy(),
            row_offset=_kernels().instructions.row_offset,
            num_threads=torch.get_num_threads(),
            arena=arena or HugePageArena(),
        )
        self._prepare(packed, weight.shape[0], activation)

    @classmethod
    def restored(
        cls,
        kept: Mapping[str, Tensor],
        *,
        activation: Activation = Activation.NONE,
        arena: HugePageArena | None = None,
    ) -> Self:
        """The projection that these tensors came from, see `kept`. They may be of a file, which is let go then."""
        panels = (arena or HugePageArena()).copy(kept["panels"].numpy())
        starts, scales, bias, signs = (kept[name].clone().numpy() for name in ("starts", "scales", "bias", "signs"))
        group, num_outputs = kept["numbers"].tolist()
        projection = cls.__new__(cls)
        projection._prepare(Int8Weight(panels, starts, scales, bias, signs, group), num_outputs, activation)
        return projection

    def _prepare(self, weight: Int8Weight, num_outputs: int, activation: Activation) -> None:
        self.out_features, self.in_features = num_outputs, len(weight.signs)
        self.weight = weight
        self.finish = finish_of(activation)

    @property
    def kept(self) -> dict[str, NDArray[Any]]:
        """All that it takes to make this projection again, on a CPU of the same kind."""
        weight = self.weight
        return {
            "panels": weight.panels,
            "starts": weight.starts,
            "scales": weight.scales,
            "bias": weight.bias,
            "signs": weight.signs,
            "numbers": np.array([weight.group, self.out_features], np.int32),
        }

    def is_exact(self) -> bool:
        return is_row_exact(self)

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiply(x, self.finish)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        return self._multiply(x, finish_kernels().ADD, other)

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        return self._multiply(x, finish_kernels().MULTIPLY, other)

    def _multiply(self, x: Tensor, kind: int, other: Tensor | None = None) -> Tensor:
        """x [R, K] times the weight, finished in the way `kind` of finish_kernels."""
        num_rows, weight, kernels = x.shape[0], self.weight, _kernels()
        result = x.new_empty(num_rows, self.out_features)
        values = result.numpy()
        is_large = num_rows * self.in_features * self.out_features >= MIN_PARALLEL_PRODUCTS
        kernels.multiply(
            torch.get_num_threads() if is_large else 1,
            x.numpy(),
            weight.signs,
            weight.group,
            kernels.instructions.row_limit,
            weight.panels,
            weight.starts,
            weight.scales,
            weight.bias,
            kind,
            values if other is None else other.numpy(),
            num_rows >= MIN_SHARED_ROWS,
            values,
        )
        return result
