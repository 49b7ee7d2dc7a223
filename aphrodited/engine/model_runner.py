"""ModelRunner: a ScheduledBatch in, one sampled token or embedding for each sequence that is due one out.

Owns the model, its KV cache memory and the sampler. Knows nothing of who is scheduled when, or of what a token means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.engine.batch_tensors import BatchTensors, step_input
from aphrodited.engine.kv_cache_pool import KVCachePool
from aphrodited.engine.pooling import Pooled
from aphrodited.engine.scheduler import ScheduledBatch, ScheduledSequence
from aphrodited.engine.sequence import Sequence as EngineSequence
from aphrodited.layers.attention import AttentionMetadata
from aphrodited.layers.step_program import Places
from aphrodited.models.config import ModelArchitecture
from aphrodited.sampling.logprobs import token_logprobs
from aphrodited.sampling.sampled import PENDING, Sampled, SamplingRow
from aphrodited.sampling.sampler import Sampler

GRAMMAR_PATIENCE_S = 0.005
"""How long a step waits, after the model has run, for what a sequence's grammar allows: then others go on without it."""

SCORED_ROWS = 128
"""Rows of logits made at once for prompt_logprobs: 128 of 50,000 take 25 MB."""


class CausalModel(Protocol):
    """What the engine needs of a model."""

    config: ModelArchitecture
    on_layer: Callable[[], None] | None
    fingerprint: str
    num_positions: int  # tokens of the longest sequence
    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype  # of its keys and values

    @property
    def nondeterminism(self) -> str:
        """Why bits may depend on the batch; empty if they do not."""
        ...

    @property
    def num_step_rows(self) -> int:
        """The most sequences that `step` can decode at once; 0 if it cannot be called."""
        ...

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

    def step(
        self, token_ids: NDArray[np.int64], places: Places, kv_caches: list[tuple[Tensor, Tensor]]
    ) -> NDArray[np.float32]:
        """Both for one token of each of num_step_rows sequences at most: logits [R, V], newly allocated."""
        ...


class ModelRunner:
    """Runs batches, on the engine's thread."""

    def __init__(self, model: CausalModel, pool: KVCachePool, block_size: int) -> None:
        self._model = model
        self._pool = pool
        self._block_size = block_size
        self._device = pool.layers[0][0].device
        self._sampler = Sampler()

    def execute(self, batch: ScheduledBatch, on_progress: Callable[[], None]) -> Sequence[Sampled | Pooled]:
        """Compute a batch. One result for each entry that reaches its sequence's end, in order.

        on_progress is called after every layer, or after all of them where they are one call.
        """
        if len(batch.entries) <= self._model.num_step_rows and all(map(_only_decodes, batch.entries)):
            return self._step(batch, on_progress)
        return self._compute(batch, on_progress)

    def close(self) -> None:
        """Let go of the KV cache."""
        self._pool.layers.clear()

    def _step(self, batch: ScheduledBatch, on_progress: Callable[[], None]) -> list[Sampled]:
        """A step is over in milliseconds, and torch's operations would be a tenth of it."""
        logits = self._model.step(*step_input(batch, self._block_size), self._pool.layers)  # [R, V]
        on_progress()
        rows = [_sampling_row(entry.sequence) for entry in batch.entries]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            logits = logits[[row is not None for row in rows]]
        return _with_pending(self._sampler.sample_on_cpu(logits, known) if known else [], rows)

    @torch.inference_mode()
    def _compute(self, batch: ScheduledBatch, on_progress: Callable[[], None]) -> list[Sampled | Pooled]:
        tensors = BatchTensors.build(batch, self._block_size, self._device)
        self._model.on_layer = on_progress
        hidden = self._model.forward(
            tensors.input_ids, tensors.metadata.positions, self._pool.layers, tensors.metadata
        )  # [T, E]
        _pool(batch, hidden)
        self._score_prompts(batch, hidden, on_progress)
        sampled = iter(self._sample(batch, hidden, tensors.logits_rows))
        return [
            next(sampled) if entry.sequence.pooler is None else entry.sequence.pooler.finish()
            for entry in batch.entries
            if entry.reaches_end
        ]

    def _sample(self, batch: ScheduledBatch, hidden: Tensor, logits_rows: Tensor | None) -> list[Sampled]:
        rows = [_sampling_row(entry.sequence) for entry in batch.entries if entry.samples]
        known = [row for row in rows if row is not None]
        if not known:
            return [PENDING] * len(rows)
        if logits_rows is not None:
            hidden = hidden[logits_rows]  # [R, E]: V is far larger than E, and a prompt has T >> R
        if len(known) < len(rows):
            hidden = hidden[[i for i, row in enumerate(rows) if row is not None]]
        return _with_pending(self._sampler.sample(self._model.compute_logits(hidden), known), rows)

    def _score_prompts(self, batch: ScheduledBatch, hidden: Tensor, on_progress: Callable[[], None]) -> None:
        """Judge the prompts' tokens that were asked about, by the hidden states [T, E] of those before them."""
        end = 0
        for entry in batch.entries:
            first, end = end, end + entry.num_tokens
            wanted = entry.sequence.prompt_logprobs
            if wanted is None:
                continue
            while due := wanted.due(entry.start, entry.num_tokens)[:SCORED_ROWS]:
                token_ids = torch.tensor(entry.sequence.token_ids[due.start + 1 : due.stop + 1], device=self._device)
                offset = first - entry.start
                logits = self._model.compute_logits(hidden[due.start + offset : due.stop + offset])
                wanted.take(token_logprobs(logits, token_ids, [wanted.num_alternatives] * len(due)))
                on_progress()


def _only_decodes(entry: ScheduledSequence) -> bool:
    """Whether nothing is wanted of an entry but the token behind the one it has."""
    wanted = entry.sequence.prompt_logprobs
    return entry.num_tokens == 1 and entry.samples and (wanted is None or wanted.are_complete)


def _with_pending(sampled: list[Sampled], rows: list[SamplingRow | None]) -> list[Sampled]:
    """One result for each row: of those that could be sampled, and PENDING."""
    known = iter(sampled)
    return [PENDING if row is None else next(known) for row in rows]


def _sampling_row(sequence: EngineSequence) -> SamplingRow | None:
    """None if it is not known in time what the sequence's grammar allows."""
    if sequence.constraint is None:
        return sequence.sampling_row()
    by_grammar = sequence.constraint.allowed(GRAMMAR_PATIENCE_S)
    return None if by_grammar is None else sequence.sampling_row(by_grammar)


def _pool(batch: ScheduledBatch, hidden: Tensor) -> None:
    """Hand the hidden states [T, E] of the flat batch to the sequences that make embeddings of them."""
    end = 0
    for entry in batch.entries:
        first, end = end, end + entry.num_tokens
        pooler = entry.sequence.pooler
        if pooler is None or not (pooler.needs_every_token or entry.reaches_end):
            continue
        rows = hidden[first if pooler.needs_every_token else end - 1 : end]
        pooler.take(rows.to("cpu", torch.float64).numpy(), entry.start)
