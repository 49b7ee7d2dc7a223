"""Weights whose projections are kept rounded, so that the next engine neither widens nor rounds them again.

Which tensors make up a projection is its own matter, see QuantizedLinear.restored. Knows no format of checkpoints.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from aphrodited.layers.huge_pages import HugePageArena
from aphrodited.layers.linear import Activation, Projection
from aphrodited.layers.quantized_linear import QuantizedLinear
from aphrodited.loaders.kept_file import KeptFile
from aphrodited.models.weights import ReadWeight, Weights

_LOWEST_PRIORITY = 19


def kept_file(cache_dir: Path, model_path: Path, fingerprint: str) -> KeptFile:
    """Where the projections of a model are kept; fingerprint: differs if they may."""
    model = hashlib.sha256(os.fsencode(model_path.absolute())).hexdigest()[:16]
    version = hashlib.sha256(f"{fingerprint} {QuantizedLinear.LAYOUT}".encode()).hexdigest()[:16]
    return KeptFile(cache_dir / "weights", model, version)


class KeptWeights:
    """The projections of earlier Weights, in the order in which they were made; all else is taken from those at hand.

    Raises KeyError for a projection that was not kept: then the file is of another program than its version says.
    """

    def __init__(
        self, weights: Weights, kept: dict[str, Tensor], report: Callable[[float, str], None], arena: HugePageArena
    ) -> None:
        self.make_attention = weights.make_attention
        self.take = weights.take
        self.take_embedding = weights.take_embedding
        self._report = report
        self._arena = arena
        self._num_bytes = sum(tensor.nbytes for tensor in kept.values())
        self._num_restored = 0
        self._kept: dict[str, dict[str, Tensor]] = {}
        for name, tensor in kept.items():
            projection, _, part = name.rpartition("/")
            self._kept.setdefault(projection, {})[part] = tensor

    def project(self, name: str, read: ReadWeight, activation: Activation = Activation.NONE) -> Projection:
        tensors = self._kept.pop(name)
        self._num_restored += sum(tensor.nbytes for tensor in tensors.values())
        self._report(self._num_restored / self._num_bytes, name)
        return QuantizedLinear.restored(tensors, activation=activation, arena=self._arena)


class KeepingWeights:
    """Other Weights; keep() has what was made of them written by a thread of the lowest priority."""

    def __init__(self, weights: Weights) -> None:
        self.make_attention = weights.make_attention
        self.take = weights.take
        self.take_embedding = weights.take_embedding
        self._weights = weights
        self._made: dict[str, QuantizedLinear] = {}

    def project(self, name: str, read: ReadWeight, activation: Activation = Activation.NONE) -> Projection:
        projection = self._weights.project(name, read, activation)
        if isinstance(projection, QuantizedLinear):
            self._made[name] = projection
        return projection

    def keep(self, file: KeptFile) -> threading.Thread:
        """Begin to write; the model may be used meanwhile, and the process may end."""
        thread = threading.Thread(target=self._write, args=(file,), name="keeping-weights", daemon=True)
        thread.start()
        return thread

    def _write(self, file: KeptFile) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        file.write(
            {f"{name}/{part}": array for name, made in self._made.items() for part, array in made.kept.items()}
        )
