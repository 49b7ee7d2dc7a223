"""Decoding steps recorded once as CUDA graphs and replayed: a step of a small model is shorter than launching its kernels.

One graph for each of a few batch sizes; a batch between two sizes is padded with rows that store nothing and see nothing.
Everything else (prompts, batches larger than any graph) runs as it is. Knows no sequences and no sampling.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.engine.model_runner import CausalModel
from aphrodited.layers.attention import AttentionMetadata
from aphrodited.layers.step_program import Places

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

Replay = Callable[[], Tensor]
"""Runs recorded work again. Gives the same tensor every time, with new values."""


class CudaGraphRecorder:
    """Records work that reads and writes always the same tensors. All its graphs share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> Replay:
        work()  # what is compiled or allocated on first use cannot be recorded
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = work()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay


class GraphedModel:
    """A CausalModel around another one, with the KV cache that its graphs write to.

    record: a CudaGraphRecorder.  on_recorded: called after each graph.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: CausalModel,
        kv_caches: list[tuple[Tensor, Tensor]],
        *,
        max_num_seqs: int,
        max_blocks: int,
        record: Callable[[Callable[[], Tensor]], Replay],
        on_recorded: Callable[[], None],
    ) -> None:
        self.config = model.config
        self.fingerprint = model.fingerprint
        self.nondeterminism = model.nondeterminism
        self.num_positions = model.num_positions
        self.device = model.device
        self.dtype, self.cache_dtype = model.dtype, model.cache_dtype
        self.num_step_rows = model.num_step_rows
        self.on_layer: Callable[[], None] | None = None
        self._model = model
        self._sizes = graph_sizes(max_num_seqs)
        self._input_ids = torch.zeros(self._sizes[-1], dtype=torch.int64, device=model.device)
        self._metadata = _idle_metadata(self._sizes[-1], max_blocks, model.device)
        self._replays: dict[int, Replay] = {}
        for size in reversed(self._sizes):  # the largest first: the others find their memory in its
            self._replays[size] = record(self._work(size, kv_caches))
            on_recorded()

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[tuple[Tensor, Tensor]],
        metadata: AttentionMetadata,
    ) -> Tensor:
        """Hidden states [T, E], to be read before the next call."""
        num_rows = len(input_ids)
        if metadata.max_query_len > 1 or num_rows > self._sizes[-1]:
            self._model.on_layer = self.on_layer
            return self._model.forward(input_ids, positions, kv_caches, metadata)
        size = next(size for size in self._sizes if size >= num_rows)
        self._input_ids[:num_rows].copy_(input_ids)
        self._fill(metadata, num_rows, size)
        hidden = self._replays[size]()[:num_rows]
        if self.on_layer is not None:
            self.on_layer()
        return hidden

    def step(
        self, token_ids: NDArray[np.int64], places: Places, kv_caches: list[tuple[Tensor, Tensor]]
    ) -> NDArray[np.float32]:
        """See CausalModel."""
        return self._model.step(token_ids, places, kv_caches)

    def compute_logits(self, rows: Tensor) -> Tensor:
        """[R, E] -> [R, V] float32, newly allocated."""
        return self._model.compute_logits(rows)

    def _work(self, size: int, kv_caches: list[tuple[Tensor, Tensor]]) -> Callable[[], Tensor]:
        whole = self._metadata
        metadata = AttentionMetadata(
            positions=whole.positions[:size],
            slot_mapping=whole.slot_mapping[:size],
            block_tables=whole.block_tables[:size],
            cu_seqlens=whole.cu_seqlens[: size + 1],
            context_lens=whole.context_lens[:size],
            max_query_len=1,
        )
        return lambda: self._model.forward(self._input_ids[:size], metadata.positions, kv_caches, metadata)

    def _fill(self, metadata: AttentionMetadata, num_rows: int, size: int) -> None:
        """Put one step's metadata where the graphs read it, and make the rows up to `size` padding."""
        ours = self._metadata
        ours.positions[:num_rows].copy_(metadata.positions)
        ours.slot_mapping[:num_rows].copy_(metadata.slot_mapping)
        ours.context_lens[:num_rows].copy_(metadata.context_lens)
        ours.block_tables[:num_rows, : metadata.block_tables.shape[1]].copy_(metadata.block_tables)
        ours.slot_mapping[num_rows:size].fill_(-1)
        ours.context_lens[num_rows:size].zero_()


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes worth a graph, in ascending order; the last is max_num_seqs unless that is beyond all SIZES."""
    largest = min(max_num_seqs, SIZES[-1])
    return [size for size in SIZES if size < largest] + [largest]


def _idle_metadata(num_rows: int, max_blocks: int, device: torch.device) -> AttentionMetadata:
    """Of sequences with one row and no keys each."""
    return AttentionMetadata(
        positions=torch.zeros(num_rows, dtype=torch.int64, device=device),
        slot_mapping=torch.full((num_rows,), -1, dtype=torch.int64, device=device),
        block_tables=torch.zeros((num_rows, max_blocks), dtype=torch.int32, device=device),
        cu_seqlens=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
        context_lens=torch.zeros(num_rows, dtype=torch.int32, device=device),
        max_query_len=1,
    )
