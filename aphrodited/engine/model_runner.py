"""ModelRunner: a ScheduledBatch in, one sampled token for each sequence that is due one out.

Owns the model, its KV cache memory and the sampler. Knows nothing of who is scheduled when, or of what a token means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from aphrodited.engine.batch_tensors import BatchTensors
from aphrodited.engine.kv_cache_pool import KVCachePool
from aphrodited.engine.scheduler import ScheduledBatch
from aphrodited.layers.attention import AttentionMetadata
from aphrodited.models.config import ModelArchitecture
from aphrodited.sampling.sampled import Sampled
from aphrodited.sampling.sampler import Sampler


class CausalModel(Protocol):
    """What the engine needs of a model."""

    config: ModelArchitecture
    on_layer: Callable[[], None] | None
    fingerprint: str
    deterministic: bool

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[tuple[Tensor, Tensor]],
        metadata: AttentionMetadata,
    ) -> Tensor:
        """Hidden states [T, E] of the flat batch; stores its keys and values."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[R, E] -> [R, V] float32, newly allocated."""
        ...


class ModelRunner:
    """Runs batches, on the engine's thread."""

    def __init__(self, model: CausalModel, pool: KVCachePool, block_size: int) -> None:
        self._model = model
        self._pool = pool
        self._block_size = block_size
        self._device = pool.layers[0][0].device
        self._sampler = Sampler()

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch, on_progress: Callable[[], None]) -> list[Sampled]:
        """Compute a batch. One result for each entry that samples, in order; on_progress is called after every layer."""
        tensors = BatchTensors.build(batch, self._block_size, self._device)
        self._model.on_layer = on_progress
        hidden = self._model.forward(
            tensors.input_ids, tensors.metadata.positions, self._pool.layers, tensors.metadata
        )  # [T, E]
        rows = [entry.sequence.sampling_row() for entry in batch.entries if entry.samples]
        if not rows:
            return []
        if tensors.logits_rows is not None:
            hidden = hidden[tensors.logits_rows]  # [R, E]: V is far larger than E, and a prompt has T >> R
        return self._sampler.sample(self._model.compute_logits(hidden), rows)

    def close(self) -> None:
        """Let go of the KV cache."""
        self._pool.layers.clear()
