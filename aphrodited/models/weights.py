"""What a model asks of whoever reads its checkpoint. Names and layouts are those of Hugging Face checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from aphrodited.layers.embedding import Embedding
from aphrodited.layers.linear import Activation, Projection
from aphrodited.layers.paged_attention import MakeAttention

ReadWeight = Callable[[], tuple[Tensor, Tensor | None]]
"""Takes what a projection is made of: a weight [out, in] and a bias [out], if it has one."""


class Weights(Protocol):
    """A checkpoint that is used up tensor by tensor. `take…` raise ModelLoadError naming file and tensor.

    make_attention: the class of the model's attention.
    """

    make_attention: MakeAttention

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor in float32, contiguous, every value finite, of exactly that shape."""
        ...

    def take_embedding(self, name: str, shape: tuple[int, int]) -> Embedding:
        """The same as a table to look rows up in; its values equal those of `take`, which may still be called."""
        ...

    def project(self, name: str, read: ReadWeight, activation: Activation = Activation.NONE) -> Projection:
        """A projection, by a name that no other of the model has. `read` is called only if it must be made anew."""
        ...


def load_linear(
    weights: Weights,
    name: str,
    in_features: int,
    out_features: int,
    *,
    bias: bool = False,
    activation: Activation = Activation.NONE,
) -> Projection:
    """The projection whose tensors are `name`.weight [out, in] and, with bias, `name`.bias [out]."""

    def read() -> tuple[Tensor, Tensor | None]:
        weight = weights.take(f"{name}.weight", (out_features, in_features))
        return weight, weights.take(f"{name}.bias", (out_features,)) if bias else None

    return weights.project(name, read, activation)
