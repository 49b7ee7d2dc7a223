"""A decoder-only language model: embedding, layers, final norm, head. Families differ in their layers only.

Computes hidden states and logits of a flat batch; knows nothing of sequences, sampling or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from aphrodited.layers.attention import AttentionMetadata
from aphrodited.layers.embedding import Embedding
from aphrodited.layers.linear import Projection, pad_rows
from aphrodited.layers.paged_attention import Attention, AttentionPlan
from aphrodited.models.config import ModelArchitecture

KVCache = tuple[Tensor, Tensor]  # one layer's keys and values, [N, K, B, D] each


class Layer(Protocol):
    """One block of a decoder. `linears` are all of its projections."""

    @property
    def linears(self) -> tuple[Projection, ...]: ...

    def __call__(self, hidden: Tensor, kv_cache: KVCache, plan: AttentionPlan) -> Tensor:
        """hidden [R, E] to the next layer's hidden [R, E]."""
        ...


class CausalLM:
    """One loaded model. All methods are called from one thread, under `torch.inference_mode`."""

    def __init__(
        self,
        config: ModelArchitecture,
        *,
        embedding: Embedding,
        attention: Attention,
        layers: Sequence[Layer],
        final_norm: Callable[[Tensor], Tensor],
        lm_head: Projection,
        fingerprint: str,
    ) -> None:
        self.config = config
        self.fingerprint = fingerprint
        self.device = attention.device
        self.dtype = attention.dtype
        linears = (*layers[0].linears, lm_head)  # the other layers have the same shapes
        self.deterministic = attention.is_exact and all(linear.is_exact() for linear in linears)
        self.on_layer: Callable[[], None] | None = None
        self._embedding = embedding
        self._attention = attention
        self._layers = layers
        self._final_norm = final_norm
        self._lm_head = lm_head
        self._min_rows = max(linear.min_rows for linear in linears)

    @torch.inference_mode()
    def forward(
        self, input_ids: Tensor, positions: Tensor, kv_caches: list[KVCache], metadata: AttentionMetadata
    ) -> Tensor:
        """Hidden states [T, E] of the flat batch input_ids [T] at positions [T]; stores its keys and values.

        Calls `on_layer` after each layer.
        """
        assert positions is metadata.positions or torch.equal(positions, metadata.positions)
        num_tokens = input_ids.shape[0]
        plan = self._attention.plan(metadata)
        hidden = pad_rows(self._embedding(input_ids), self._min_rows)  # [R, E]
        for layer, kv_cache in zip(self._layers, kv_caches, strict=True):
            hidden = layer(hidden, kv_cache, plan)
            if self.on_layer is not None:
                self.on_layer()
        return self._final_norm(hidden[:num_tokens])

    @torch.inference_mode()
    def compute_logits(self, rows: Tensor) -> Tensor:
        """float32 [R, V] for the rows [R, E] of a forward pass that need a next token."""
        return self._lm_head(pad_rows(rows.contiguous(), self._min_rows))[: rows.shape[0]].float()
