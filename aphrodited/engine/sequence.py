"""Sequence: one request's life in the engine. Knows its tokens and blocks; decides nothing about its turn."""

from __future__ import annotations

from array import array
from enum import StrEnum

from aphrodited.engine.pooling import Pooler
from aphrodited.engine.prompt_logprobs import PromptLogprobs
from aphrodited.flight import UNKNOWN
from aphrodited.grammar.constraint import Constraint
from aphrodited.outputs import FinishReason
from aphrodited.request import EngineRequest, GenerateRequest, Pooling
from aphrodited.sampling.bitmask import Bitmask, without
from aphrodited.sampling.logit_rules import NO_TOKENS, logit_rules
from aphrodited.sampling.sampled import SamplingRow
from aphrodited.sampling_params import SamplingParams


class SequenceStatus(StrEnum):
    PREPARING = "preparing"  # waits for its grammar; holds no blocks
    WAITING = "waiting"  # holds no blocks
    RUNNING = "running"  # holds blocks for every token it has, or for what its window shows and the next step computes
    FINISHED = "finished"


class Sequence:
    """Tokens so far, how many of them are computed, and which blocks hold their keys and values.

    token_ids: prompt, then output; an array, so that a step copies slices and never visits single tokens.
    num_computed_tokens: the leading tokens whose keys and values are in the cache.
    block_table: block ids in order; the first num_gone_blocks entries mean nothing, for its window has passed them.
    block_hashes: of the leading full blocks, as far as they were needed.
    num_cached_tokens: how many prompt tokens the prefix cache served; None until first admitted.
    pooler: makes its embedding; None if it generates tokens.
    rules: penalties and the like, kept up by `append`; None if there are none.
    constraint: its place in its grammar, set by whoever begins it and moved on by `append`; None without a grammar.
    prompt_logprobs: collects them; None if they are not wanted.
    fingerprint, alone_until: as of its request.
    """

    __slots__ = (
        "alone_until",
        "block_hashes",
        "block_table",
        "constraint",
        "fingerprint",
        "key",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_gone_blocks",
        "num_prompt_tokens",
        "num_replayed",
        "params",
        "pooler",
        "prompt_logprobs",
        "rank",
        "rules",
        "seed",
        "status",
        "stop_token_ids",
        "token_ids",
        "unwanted_end_ids",
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
        vocab_size: int,
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
        self.fingerprint = request.fingerprint or UNKNOWN
        self.alone_until = request.alone_until
        # Lower runs first; unique. Interrupted answers go on before new ones begin, the shortest first.
        self.rank = (request.priority, not num_replayed, len(request.prompt_token_ids) if num_replayed else 0, arrival)
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
        self.unwanted_end_ids = frozenset(eos_token_ids) if params.ignore_eos else NO_TOKENS
        self.rules = logit_rules(
            params, self.token_ids[:num_own_tokens], self.token_ids[num_own_tokens:], vocab_size
        )
        self.constraint: Constraint | None = None
        self.prompt_logprobs = (
            None if params.prompt_logprobs is None else PromptLogprobs(num_own_tokens, params.prompt_logprobs)
        )
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None
        self.block_table = array("i")
        self.num_gone_blocks = 0
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
    def runs_alone(self) -> bool:
        """Whether it must have no company yet."""
        return self.num_computed_tokens < self.alone_until

    @property
    def uses_prefix_cache(self) -> bool:
        """Whether it may do without the hidden states of cached tokens."""
        if self.prompt_logprobs is not None and not self.prompt_logprobs.are_complete:
            return False
        return self.pooler is None or not self.pooler.needs_every_token

    def sampling_row(self, by_grammar: Bitmask | None = None) -> SamplingRow:
        """How to choose the next token. by_grammar: what its grammar allows."""
        params = self.params
        too_early = params.min_tokens and self.num_output_tokens < params.min_tokens
        forbidden = self.stop_token_ids if too_early else NO_TOKENS
        allowed = None
        if by_grammar is not None:
            allowed = _preferably_without(by_grammar, forbidden | self.unwanted_end_ids)
            forbidden = NO_TOKENS
        if self.rules is not None:
            forbidden |= self.rules.forbidden(self.token_ids, self.num_output_tokens)
            if self.rules.allowed is not None:
                allowed = self.rules.allowed if allowed is None else allowed & self.rules.allowed
        return SamplingRow(params, self.seed, len(self.token_ids), forbidden, self.rules, allowed)

    def append(self, token_id: int) -> FinishReason | None:
        """Add a token that was generated. Returns why it ends this sequence; None if it goes on."""
        self.token_ids.append(token_id)
        reason = self.finish_reason()
        if reason is None:
            if self.rules is not None:
                self.rules.add(token_id)
            if self.constraint is not None:
                self.constraint.advance(token_id)
        return reason

    def finish_reason(self) -> FinishReason | None:
        """Why the newest token, an output, ends this sequence; None if it goes on."""
        if self.token_ids[-1] in self.stop_token_ids:
            return FinishReason.STOP
        if len(self.token_ids) >= self.max_total_tokens:
            return FinishReason.LENGTH
        return None


def _preferably_without(allowed: Bitmask, unwanted: frozenset[int]) -> Bitmask:
    """The allowed tokens that are not unwanted; all of them, if no others are left."""
    if not unwanted:
        return allowed
    rest = without(allowed, unwanted)
    return rest if rest.any() else allowed
