"""A decoder-only language model: embedding, layers, final norm, head. Families differ in their layers only.

Computes hidden states and logits of a flat batch; knows nothing of sequences, sampling or files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.layers.attention import AttentionMetadata, KVCache
from aphrodited.layers.embedding import Embedding
from aphrodited.layers.linear import Projection
from aphrodited.layers.norm import LayerNorm, RMSNorm
from aphrodited.layers.paged_attention import Attention, AttentionPlan, PagedAttention
from aphrodited.layers.step_ops import Buffer
from aphrodited.layers.step_program import MAX_ROWS, Places, StepProgram, can_run
from aphrodited.models.config import ModelArchitecture


class Layer(Protocol):
    """One block of a decoder. `linears` are all of its projections."""

    @property
    def linears(self) -> tuple[Projection, ...]: ...

    def __call__(self, hidden: Tensor, kv_cache: KVCache, plan: AttentionPlan) -> Tensor:
        """hidden [R, E] to the next layer's hidden [R, E]."""
        ...

    def write_to(self, program: StepProgram) -> None:
        """The same as operations from HIDDEN to HIDDEN."""
        ...


class CausalLM:
    """One loaded model. All methods are called from one thread, under `torch.inference_mode`.

    num_positions: tokens of the longest sequence.  kernel: what computes attention.
    """

    def __init__(
        self,
        config: ModelArchitecture,
        *,
        embedding: Embedding,
        attention: Attention,
        layers: Sequence[Layer],
        final_norm: RMSNorm | LayerNorm,
        lm_head: Projection,
        num_positions: int,
    ) -> None:
        self.config = config
        self.num_positions = num_positions
        self.fingerprint = ""  # given by whoever knows where the weights came from
        self.device = attention.device
        self.dtype, self.cache_dtype = attention.dtype, attention.cache_dtype
        self.kernel = attention.kernel
        self.on_layer: Callable[[], None] | None = None
        self._used_at_s = -math.inf
        self._embedding = embedding
        self._attention = attention
        self._layers = layers
        self._final_norm = final_norm
        self._lm_head = lm_head
        self._linears = (*layers[0].linears, lm_head)  # the other layers have the same shapes

    @cached_property
    def nondeterminism(self) -> str:
        """Why a request's bits may depend on what else is in the batch; empty if they do not. Runs kernels the first time."""
        if self.device.type != "cpu":
            return f"computed on {self.device}"
        if not self._attention.is_exact:
            return f"attention is computed by {self.kernel}, not by kernels of its own"
        if not all(linear.is_exact() for linear in self._linears):
            return "matrix products of this CPU and build of torch depend on the batch"
        return ""

    @torch.inference_mode()
    def forward(
        self, input_ids: Tensor, positions: Tensor, kv_caches: list[KVCache], metadata: AttentionMetadata
    ) -> Tensor:
        """Hidden states [T, E] of the flat batch input_ids [T] at positions [T]; stores its keys and values.

        Calls `on_layer` after each layer.
        """
        assert positions is metadata.positions or torch.equal(positions, metadata.positions)
        self._used_at_s = time.monotonic()
        plan = self._attention.plan(metadata)
        hidden = self._embedding(input_ids)  # [T, E]
        for layer, kv_cache in zip(self._layers, kv_caches, strict=True):
            hidden = layer(hidden, kv_cache, plan)
            self._used_at_s = time.monotonic()
            if self.on_layer is not None:
                self.on_layer()
        return self._final_norm(hidden)

    @torch.inference_mode()
    def compute_logits(self, rows: Tensor) -> Tensor:
        """float32 [R, V] for the rows [R, E] of a forward pass that need a next token."""
        return self._lm_head(rows.contiguous()).float()

    @property
    def num_step_rows(self) -> int:
        """The most sequences that `step` can decode at once."""
        return 0 if self._program is None else MAX_ROWS

    def step(self, token_ids: NDArray[np.int64], places: Places, kv_caches: list[KVCache]) -> NDArray[np.float32]:
        """Logits [R, V] behind the newest tokens [R] of sequences; stores their keys and values.

        All layers are one call. The bits are those of `forward` and `compute_logits`.
        """
        assert self._program is not None
        self._used_at_s = time.monotonic()
        hidden = self._embedding.rows(token_ids)
        logits = self._program.run(hidden, kv_caches, places, result=Buffer.LOGITS)
        self._used_at_s = time.monotonic()
        return logits

    def rested_s(self) -> float:
        """For how long no layer was computed. May be called from any thread."""
        return time.monotonic() - self._used_at_s

    @cached_property
    def _program(self) -> StepProgram | None:
        """All of a step of few rows in one call."""
        if not isinstance(self._attention, PagedAttention) or not can_run(self._attention, self._linears):
            return None
        program = StepProgram(self._attention)
        for layer in self._layers:
            layer.write_to(program)
        program.product(self._lm_head, Buffer.HIDDEN, Buffer.LOGITS, norm=self._final_norm)
        return program
