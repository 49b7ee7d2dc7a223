"""A checkpoint as a model's Weights: hands out each tensor, checks it, and knows what is missing or left over.

Every format is a Checkpoint; the checks are here, once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from aphrodited.errors import ModelLoadError
from aphrodited.layers.embedding import Embedding
from aphrodited.layers.linear import Activation, Linear, MakeProjection, Projection
from aphrodited.layers.paged_attention import MakeAttention, PagedAttention
from aphrodited.models.config import ModelArchitecture
from aphrodited.models.weights import ReadWeight


class Checkpoint(Protocol):
    """Tensors on disk, under Hugging Face names and in Hugging Face layout. Methods raise ModelLoadError."""

    @property
    def config(self) -> ModelArchitecture: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor of the checkpoint."""
        ...

    @property
    def identity(self) -> str:
        """Differs if any value may differ."""
        ...

    def describe(self, name: str) -> str:
        """File and tensor, for people. Of a tensor that is not there: where it should be."""
        ...

    def read(self, name: str) -> Tensor:
        """The tensor, in a floating-point format."""
        ...

    def read_embedding(self, name: str) -> Embedding:
        """The tensor as a table, without holding all of it in float32."""
        ...


class CheckpointWeights:
    """Weights out of a Checkpoint. report(progress from 0 to 1, what is read) is called for each tensor."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        report: Callable[[float, str], None],
        make_projection: MakeProjection = Linear,
        make_attention: MakeAttention = PagedAttention,
    ) -> None:
        self._make_projection = make_projection
        self.make_attention = make_attention
        self._checkpoint = checkpoint
        self._report = report
        self._taken: set[str] = set()
        self._finite: set[str] = set()
        self._num_read = 0
        self._num_total = max(1, sum(math.prod(shape) for shape in checkpoint.shapes.values()))

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._use(name, shape)
        return self._read(name)

    def take_embedding(self, name: str, shape: tuple[int, int]) -> Embedding:
        self._use(name, shape)
        return self._checkpoint.read_embedding(name)

    def project(self, name: str, read: ReadWeight, activation: Activation = Activation.NONE) -> Projection:
        return self._make_projection(*read(), activation=activation)

    def finish(self, ignored: str) -> None:
        """Check what was not looked at yet.

        Raises ModelLoadError for tensors that nobody took and whose names do not match the pattern `ignored`.
        """
        left_over = [n for n in self._checkpoint.shapes if n not in self._taken and not re.fullmatch(ignored, n)]
        if left_over:
            more = f" and {len(left_over) - 1} more" if len(left_over) > 1 else ""
            architecture = self._checkpoint.config.architecture
            raise ModelLoadError(f"{self._checkpoint.describe(left_over[0])}{more}: not part of a {architecture}")
        for name in self._taken - self._finite:  # embeddings that are no head
            self._read(name)

    def _read(self, name: str) -> Tensor:
        with _one_thread():
            tensor = self._checkpoint.read(name).to(torch.float32).contiguous()
            is_finite = bool(torch.isfinite(tensor.sum()))  # one pass; NaN and infinity both survive a sum
        if not is_finite:
            raise ModelLoadError(f"{self._checkpoint.describe(name)} has values that are not finite: damaged file?")
        self._finite.add(name)
        return tensor

    def _use(self, name: str, shape: tuple[int, ...]) -> None:
        found = self._checkpoint.shapes.get(name)
        if found is None:
            raise ModelLoadError(f"{self._checkpoint.describe(name)} is missing")
        if found != shape:
            raise ModelLoadError(f"{self._checkpoint.describe(name)} has shape {found}, the config asks for {shape}")
        if name not in self._taken:
            self._taken.add(name)
            self._num_read += math.prod(shape)
        self._report(self._num_read / self._num_total, name)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Widening is many small operations, where waiting for a second thread costs more than it does (measured: 4 x)."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
