"""Sequence: one request's life in the engine. Knows its tokens and blocks; decides nothing about its turn."""

from __future__ import annotations

from array import array
from enum import StrEnum

from aphrodited.engine.pooling import Pooler
from aphrodited.outputs import FinishReason
from aphrodited.request import EngineRequest, GenerateRequest, Pooling
from aphrodited.sampling.sampled import SamplingRow
from aphrodited.sampling_params import SamplingParams


class SequenceStatus(StrEnum):
    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"  # holds blocks for every token it has
    FINISHED = "finished"


class Sequence:
    """Tokens so far, how many of them are computed, and which blocks hold their keys and values.

    token_ids: prompt, then output; an array, so that a step copies slices and never visits single tokens.
    num_computed_tokens: the leading tokens whose keys and values are in the cache.
    block_table: block ids in order.  block_hashes: of the leading full blocks, as far as they were needed.
    num_cached_tokens: how many prompt tokens the prefix cache served; None until first admitted.
    pooler: makes its embedding; None if it generates tokens.
    """

    __slots__ = (
        "block_hashes",
        "block_table",
        "key",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_prompt_tokens",
        "num_replayed",
        "params",
        "pooler",
        "rank",
        "seed",
        "status",
        "stop_token_ids",
        "token_ids",
    )

    def __init__(
        self,
        key: int,
        request: EngineRequest,
        *,
        seed: int,
        arrival: int,
        eos_token_ids: tuple[int, ...],
        max_model_len: int,
    ) -> None:
        if isinstance(request, GenerateRequest):
            params, num_replayed, pooler = request.sampling_params, request.num_replayed, None
        else:
            params, num_replayed = SamplingParams(), 0
            pooler = Pooler(Pooling(request.pooling), normalize=request.normalize)
        self.key = key
        self.params = params
        self.pooler = pooler
        self.seed = seed
        self.rank = (request.priority, arrival)  # lower runs first; unique
        self.status = SequenceStatus.WAITING
        self.token_ids = array("q", request.prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.num_replayed = num_replayed
        num_own_tokens = self.num_prompt_tokens - self.num_replayed  # what is not output, of any life
        self.max_total_tokens = (
            max_model_len if params.max_tokens is None else min(max_model_len, num_own_tokens + params.max_tokens)
        )
        self.stop_token_ids = frozenset(params.stop_token_ids) | (
            frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        )
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None
        self.block_table = array("i")
        self.block_hashes: list[bytes] = []

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated in this life and in earlier ones."""
        return len(self.token_ids) - self.num_prompt_tokens + self.num_replayed

    @property
    def is_decoding(self) -> bool:
        """Only its newest token is left to compute."""
        return self.num_computed_tokens == len(self.token_ids) - 1

    @property
    def uses_prefix_cache(self) -> bool:
        """Whether it may do without the hidden states of cached tokens."""
        return self.pooler is None or not self.pooler.needs_every_token

    def sampling_row(self) -> SamplingRow:
        """How to choose the next token."""
        params = self.params
        if params.min_tokens and self.num_output_tokens < params.min_tokens:
            return SamplingRow(params, self.seed, len(self.token_ids), self.stop_token_ids)
        return SamplingRow(params, self.seed, len(self.token_ids))

    def finish_reason(self) -> FinishReason | None:
        """Why the newest token, an output, ends this sequence; None if it goes on."""
        if self.token_ids[-1] in self.stop_token_ids:
            return FinishReason.STOP
        if len(self.token_ids) >= self.max_total_tokens:
            return FinishReason.LENGTH
        return None
