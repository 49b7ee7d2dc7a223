"""Linear projections in float32, by kernels of our own, over weights that are laid out once, at load.

An output is one chain of sums over its channels, in their order, however many rows are beside it: a row has the same bits in
any batch. Bias, activation, residual and gate come along in the same pass. Without numba or on a CPU that has neither
AVX-512 nor AVX2 torch computes, whose order depends on the batch. Knows no names, files or models.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache, cached_property
from types import ModuleType
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from aphrodited.layers.float_weight import FloatWeight, empty_weight, num_lanes, pack_panels
from aphrodited.layers.huge_pages import HugePageArena
from aphrodited.layers.packing import PackingThread, pack_at_once

_TRIED_ROWS = (1, 5, 8, 33)
_MANY_ROWS = 100
MIN_PARALLEL_PRODUCTS = 256 * 1024  # fewer are computed in less time than it takes to wake a second thread


class Activation(StrEnum):
    """What follows a projection, by the names checkpoints use (`hidden_act`)."""

    NONE = "none"
    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_pytorch_tanh"


class Projection(Protocol):
    """activation(x @ weight.T + bias) for a weight [out, in]; x is [R, in], float32."""

    in_features: int
    out_features: int

    def is_exact(self) -> bool:
        """Whether a row has the same bits beside any number of others."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """x @ weight.T + bias + other: a projection back onto its residual stream. For layers without activation."""
        ...

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        """(x @ weight.T + bias) * other: one half of a gated pair. For layers without activation."""
        ...


class MakeProjection(Protocol):
    """Linear or another class of projections."""

    def __call__(
        self, weight: Tensor, bias: Tensor | None = None, *, activation: Activation = Activation.NONE
    ) -> Projection: ...


def has_kernels() -> bool:
    """Whether this installation and CPU have products of our own."""
    return num_lanes() > 0


@cache
def _kernels() -> ModuleType:
    """Imported late: where they are kept is settled by the first PagedAttention, see paged_attention.load_kernels."""
    from aphrodited.layers import float_kernels

    return float_kernels


@cache
def finish_kernels() -> ModuleType:
    """Imported late, as all kernels are."""
    from aphrodited.layers import finish_kernels as kernels

    return kernels


def finish_of(activation: Activation) -> int:
    """The same in finish_kernels."""
    kernels = finish_kernels()
    finishes: dict[Activation, int] = {
        Activation.NONE: kernels.PLAIN,
        Activation.SILU: kernels.SILU,
        Activation.GELU: kernels.GELU,
        Activation.GELU_TANH: kernels.GELU_TANH,
    }
    return finishes[activation]


def compile_kernels() -> None:
    """Run every kernel once, so that the first engine after an installation starts at once."""
    if has_kernels():
        for num_outputs in (1, MIN_PARALLEL_PRODUCTS // 8):
            Linear(torch.ones(num_outputs, 8))(torch.ones(1, 8))


class Linear:
    """A Projection in float32.

    The weights of one model share an arena, and a PackingThread; without one they are packed at once.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: Activation = Activation.NONE,
        arena: HugePageArena | None = None,
        packing: PackingThread | None = None,
    ) -> None:
        self.out_features, self.in_features = weight.shape
        self._activation = activation
        self._plain = None if has_kernels() else (weight, bias)
        if self._plain is None:
            self._packed = empty_weight(self.out_features, self.in_features, bias, arena or HugePageArena())
            submit = pack_at_once if packing is None else packing.submit
            self._await_panels = submit(pack_panels, weight, self._packed.panels)

    @cached_property
    def weight(self) -> FloatWeight:
        """As the kernels take it. Not there if torch computes."""
        self._await_panels()
        return self._packed

    @cached_property
    def finish(self) -> int:
        """What follows the product, as finish_kernels call it."""
        return finish_of(self._activation)

    def is_exact(self) -> bool:
        return self._plain is None

    def __call__(self, x: Tensor) -> Tensor:
        if self._plain is not None:
            return activate(F.linear(x, *self._plain), self._activation)
        return self._multiply(x, self.finish)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x) + other if self._plain is not None else self._multiply(x, finish_kernels().ADD, other)

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        return self(x) * other if self._plain is not None else self._multiply(x, finish_kernels().MULTIPLY, other)

    def _multiply(self, x: Tensor, finish: int, other: Tensor | None = None) -> Tensor:
        """x [R, K] times the weight, finished in that way of finish_kernels."""
        result = x.new_empty(x.shape[0], self.out_features)
        values = result.numpy()
        is_large = x.numel() * self.out_features >= MIN_PARALLEL_PRODUCTS
        _kernels().multiply(
            torch.get_num_threads() if is_large else 1,
            x.contiguous().numpy(),  # a tile takes the numbers of a row as they lie
            self.weight.panels,
            self.weight.bias,
            finish,
            values if other is None else other.numpy(),
            values,
        )
        return result


def is_row_exact(projection: Projection) -> bool:
    """Whether rows of random numbers gave the same bits beside few others and many."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.empty(_MANY_ROWS, projection.in_features).normal_(generator=generator)
    result = projection(rows)
    return all(torch.equal(projection(rows[:n].contiguous()), result[:n]) for n in _TRIED_ROWS)


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The activation of x, applied by itself."""
    match activation:
        case Activation.NONE:
            return x
        case Activation.SILU:
            return F.silu(x)
        case Activation.GELU:
            return F.gelu(x)
        case Activation.GELU_TANH:
            return F.gelu(x, approximate="tanh")
