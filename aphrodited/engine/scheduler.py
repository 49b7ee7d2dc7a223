"""Scheduler: which tokens of which sequences the next step computes, and what a step's tokens mean for them.

A step is one flat batch: first one token of every decoding sequence, so that no long prompt freezes a running stream, then
pieces of prompts as far as max_num_batched_tokens allows. Order is by priority, answers that another engine began before
new ones, then by arrival. A sequence is admitted with blocks for all its tokens and needs one more per block_size tokens
of output; if none is free, the running sequence that ranks last gives up its blocks and waits to be computed again. The
first in rank is never robbed, so somebody always gets on, and everybody ends. Knows no tensors, no text, no clock.

A sequence with a grammar waits aside until that is compiled, and has `follow_grammars` end it when the grammar ends or
fails. If what may come next is not known in time, its step is not held up: the sequence computes its last token again.

A sequence that is suspected of ending engines computes so many of its tokens alone (`runs_alone`), before everything else;
those that run pause meanwhile, and keep their blocks unless it needs them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import merge

from aphrodited.config.schema import EngineConfig
from aphrodited.engine.block_manager import BlockManager
from aphrodited.engine.pooling import Pooled
from aphrodited.engine.resumed_share import ResumedShare
from aphrodited.engine.sequence import Sequence, SequenceStatus
from aphrodited.errors import ConfigError, ContextLengthError, QueueFullError, RequestError
from aphrodited.grammar.constraint import ConstraintState
from aphrodited.interfaces import EngineStats
from aphrodited.outputs import FinishReason, TokenLogprobs, TokenOutput
from aphrodited.sampling.sampled import Sampled


@dataclass(slots=True)
class ScheduledSequence:
    """num_tokens tokens of a sequence, from `start` on.

    If they reach its end, the step samples the next one or, if the sequence has a pooler, finishes its embedding.
    """

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def reaches_end(self) -> bool:
        return self.start + self.num_tokens == len(self.sequence)

    @property
    def samples(self) -> bool:
        return self.reaches_end and self.sequence.pooler is None


@dataclass(slots=True)
class ScheduledBatch:
    """One step's work: decoding sequences first, then prompts."""

    entries: list[ScheduledSequence] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        self.entries.append(ScheduledSequence(sequence, sequence.num_computed_tokens, num_tokens))
        self.num_tokens += num_tokens


@dataclass(slots=True)
class Counters:
    """Since the engine started; see EngineStats."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_preemptions: int = 0
    num_steps: int = 0


_NOT_FINITE = (
    "not_finite",
    "no token could be chosen: the model computed numbers for this request that are not finite, or the request forbids"
    " every token",
)


def _rank(sequence: Sequence) -> tuple[int, int, int, int]:
    return sequence.rank


def _first_logprobs(sequence: Sequence) -> list[TokenLogprobs] | None:
    """The prompt's, to be sent with the first token."""
    if sequence.prompt_logprobs is None or len(sequence) > sequence.num_prompt_tokens:
        return None
    return sequence.prompt_logprobs.entries


def _is_not_finite(result: Sampled | Pooled) -> bool:
    if isinstance(result, Pooled):
        return result.data is None
    return result.token_id is None and not result.is_pending


class Scheduler:
    """Owns every sequence from `add` to its end."""

    def __init__(
        self, block_manager: BlockManager, *, max_num_seqs: int, max_num_batched_tokens: int, max_num_waiting: int
    ) -> None:
        self._blocks = block_manager
        # Whoever runs decodes in every step, so no more may run than tokens fit into one.
        self._max_num_seqs = min(max_num_seqs, max_num_batched_tokens)
        self._max_num_batched_tokens = max_num_batched_tokens
        self._resumed_share = ResumedShare(max_num_batched_tokens)
        self._max_num_unfinished = self._max_num_seqs + max_num_waiting
        self._sequences: dict[int, Sequence] = {}  # by key, all unfinished ones
        self._constrained: dict[int, Sequence] = {}  # those of them that have a grammar
        self._suspects: dict[int, Sequence] = {}  # those that run alone, or have not been seen to have done so
        self._waiting: list[Sequence] = []  # both in order of rank
        self._running: list[Sequence] = []
        self._counters = Counters()

    def has_unfinished_sequences(self) -> bool:
        return bool(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; one with a grammar is set aside, and its constraint may be set after this.

        Raises ContextLengthError if the KV cache could never hold it, QueueFullError if too many wait.
        """
        if sequence.key in self._sequences:
            raise ValueError(f"key {sequence.key} is in use")
        if not self._blocks.can_hold(len(sequence)):
            capacity = self._blocks.num_blocks * self._blocks.block_size
            raise ContextLengthError(
                f"the prompt has {len(sequence)} tokens, the KV cache holds {capacity}", param="prompt"
            )
        if len(self._sequences) >= self._max_num_unfinished:
            raise QueueFullError(f"{self._num_waiting} requests are waiting already; try again later")
        self._sequences[sequence.key] = sequence
        if sequence.runs_alone:
            self._suspects[sequence.key] = sequence
        if sequence.params.grammar is None:
            self._wait(sequence)
        else:
            sequence.status = SequenceStatus.PREPARING
            self._constrained[sequence.key] = sequence

    def abort(self, key: int) -> bool:
        """End a sequence now. Its full blocks hold what they say, so they stay in the prefix cache. False if unknown."""
        sequence = self._sequences.get(key)
        if sequence is None:
            return False
        self._end(sequence)
        self._counters.num_aborted += 1
        return True

    def follow_grammars(self) -> list[TokenOutput]:
        """Let sequences begin whose grammar is compiled; end those whose grammar has ended or failed."""
        outputs: list[TokenOutput] = []
        for sequence in list(self._constrained.values()):
            assert sequence.constraint is not None
            try:
                state = sequence.constraint.state()
            except RequestError as error:
                outputs.append(self._fail(sequence, (error.code, str(error)), error.param))
                continue
            if state is ConstraintState.COMPLETE:
                outputs.append(self._finish(sequence))
            elif state is ConstraintState.OPEN and sequence.status is SequenceStatus.PREPARING:
                self._wait(sequence)
        return outputs

    def schedule(self) -> ScheduledBatch:
        """Choose the next step's work and reserve its blocks. Every batch must come back through `update`."""
        batch = ScheduledBatch()
        suspect = self._next_suspect()
        if suspect is not None:
            self._schedule_alone(batch, suspect)
            return batch
        was_preempted = self._secure_blocks()
        for sequence in self._running:
            if sequence.is_decoding:
                batch.add(sequence, 1)
        self._schedule_prompts(batch, admits=not was_preempted)  # what a victim freed is for those who run
        return batch

    def update(self, batch: ScheduledBatch, results: Iterable[Sampled | Pooled]) -> list[TokenOutput]:
        """Take in what a step computed.  results: one for each entry that reaches its sequence's end, in order."""
        outputs: list[TokenOutput] = []
        remaining = iter(results)
        for entry in batch.entries:
            sequence = entry.sequence
            result = next(remaining) if entry.reaches_end else None
            if result is not None and _is_not_finite(result):
                outputs.append(self._fail(sequence, _NOT_FINITE, forget=True))
                continue
            is_pending = isinstance(result, Sampled) and result.is_pending
            sequence.num_computed_tokens += entry.num_tokens - is_pending
            self._blocks.publish(sequence, entry.start)
            self._blocks.slide(sequence)
            if isinstance(result, Pooled):
                outputs.append(self._finish_embedding(sequence, result))
            elif result is not None and result.token_id is not None:
                outputs.append(self._append(sequence, result.token_id, result))
        self._counters.num_steps += 1
        return outputs

    def stats(self) -> EngineStats:
        counters = self._counters
        return EngineStats(
            num_running=len(self._running),
            num_waiting=self._num_waiting,
            num_blocks_used=self._blocks.num_used_blocks,
            num_blocks_total=self._blocks.num_blocks,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_cached_tokens=counters.num_cached_tokens,
            num_generated_tokens=counters.num_generated_tokens,
            num_finished=counters.num_finished,
            num_aborted=counters.num_aborted,
            num_preemptions=counters.num_preemptions,
            num_steps=counters.num_steps,
        )

    def reset(self) -> None:
        """Forget counters and cached prefixes, as if nothing had run yet. Only without unfinished sequences."""
        assert not self._sequences
        self._counters = Counters()
        self._blocks.forget_all()

    def _next_suspect(self) -> Sequence | None:
        """The first in rank of those that run alone and can run now. Whoever is through runs with the others from now on."""
        for sequence in [suspect for suspect in self._suspects.values() if not suspect.runs_alone]:
            sequence.alone_until = 0
            del self._suspects[sequence.key]
        ready = [s for s in self._suspects.values() if s.status is not SequenceStatus.PREPARING]
        return min(ready, key=_rank, default=None)

    def _schedule_alone(self, batch: ScheduledBatch, sequence: Sequence) -> None:
        """Those that run make room for it if they must, the last in rank first: alone it fits in any case."""
        while not self._has_place(sequence):
            self._preempt(next(other for other in reversed(self._running) if other is not sequence))
        self._schedule_chunk(batch, sequence, self._max_num_batched_tokens)

    def _has_place(self, sequence: Sequence) -> bool:
        if sequence.status is SequenceStatus.RUNNING:
            return self._blocks.grow(sequence)
        return len(self._running) < self._max_num_seqs and self._begin(sequence, num_reserved=0)

    def _secure_blocks(self) -> bool:
        """See that all who run can compute a token, the first in rank first. Returns whether somebody was preempted."""
        was_preempted = False
        for sequence in list(self._running):
            while sequence.status is SequenceStatus.RUNNING and not self._blocks.grow(sequence):
                self._preempt(self._running[-1])
                was_preempted = True
        return was_preempted

    def _schedule_prompts(self, batch: ScheduledBatch, *, admits: bool) -> None:
        """Pieces of prompts, in order of rank, of those that run and of those that may begin."""
        begun = [sequence for sequence in self._running if not sequence.is_decoding]
        waiting = self._waiting[: self._max_num_seqs - len(self._running)] if admits else []
        num_resumed = 0
        for sequence in merge(begun, waiting, key=_rank):
            num_left = self._max_num_batched_tokens - batch.num_tokens
            if sequence.num_replayed:
                num_missing = len(sequence) - sequence.num_computed_tokens
                num_left = min(num_left, self._resumed_share.limit(num_missing, num_resumed))
            if num_left <= 0:
                return
            if sequence.status is SequenceStatus.WAITING:
                # Each who runs keeps a block to grow into, lest the newcomer be thrown out at once.
                admits = admits and self._begin(sequence, num_reserved=len(self._running))
                if not admits:
                    continue  # nobody who waits overtakes, so nobody starves
            num_tokens = self._schedule_chunk(batch, sequence, num_left)
            if sequence.num_replayed:
                num_resumed += num_tokens

    def _begin(self, sequence: Sequence, *, num_reserved: int) -> bool:
        """Let a waiting sequence run if there are blocks for it."""
        if not self._blocks.admit(sequence, num_reserved=num_reserved):
            return False
        self._waiting.remove(sequence)
        sequence.status = SequenceStatus.RUNNING
        insort(self._running, sequence, key=_rank)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self._counters.num_prompt_tokens += len(sequence)
            self._counters.num_cached_tokens += sequence.num_cached_tokens
        return True

    def _schedule_chunk(self, batch: ScheduledBatch, sequence: Sequence, num_left: int) -> int:
        """How many tokens were added; num_left is how many may be, more than 0."""
        num_tokens = self._blocks.extend(sequence, min(len(sequence) - sequence.num_computed_tokens, num_left))
        batch.add(sequence, num_tokens)
        return num_tokens

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._blocks.release(sequence)
        self._wait(sequence)
        self._counters.num_preemptions += 1

    def _append(self, sequence: Sequence, token_id: int, result: Sampled) -> TokenOutput:
        is_first = len(sequence) == sequence.num_prompt_tokens
        prompt_logprobs = _first_logprobs(sequence)
        reason = sequence.append(token_id)
        self._counters.num_generated_tokens += 1
        if reason is not None:
            self._end(sequence)
            self._counters.num_finished += 1
        return TokenOutput(
            key=sequence.key,
            token_ids=[token_id],
            finish_reason=reason,
            stop_token_id=token_id if reason is FinishReason.STOP else None,
            logprobs=None if result.logprobs is None else [result.logprobs],
            num_cached_tokens=(sequence.num_cached_tokens or 0) if is_first else 0,
            prompt_logprobs=prompt_logprobs,
        )

    def _finish(self, sequence: Sequence) -> TokenOutput:
        """End a sequence whose tokens were all given out."""
        self._end(sequence)
        self._counters.num_finished += 1
        return TokenOutput(
            key=sequence.key,
            token_ids=[],
            finish_reason=FinishReason.STOP,
            prompt_logprobs=_first_logprobs(sequence),
        )

    def _finish_embedding(self, sequence: Sequence, result: Pooled) -> TokenOutput:
        self._end(sequence)
        self._counters.num_finished += 1
        return TokenOutput(
            key=sequence.key,
            token_ids=[],
            finish_reason=FinishReason.STOP,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            embedding=result.data,
        )

    def _fail(
        self, sequence: Sequence, error: tuple[str, str], param: str | None = None, *, forget: bool = False
    ) -> TokenOutput:
        self._end(sequence, forget=forget)
        self._counters.num_finished += 1
        return TokenOutput(
            key=sequence.key, token_ids=[], finish_reason=FinishReason.ERROR, error=error, error_param=param
        )

    @property
    def _num_waiting(self) -> int:
        return len(self._sequences) - len(self._running)

    def _wait(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.WAITING
        insort(self._waiting, sequence, key=_rank)

    def _end(self, sequence: Sequence, *, forget: bool = False) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            self._running.remove(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self._waiting.remove(sequence)
        if self._constrained.pop(sequence.key, None) is not None and sequence.constraint is not None:
            sequence.constraint.cancel()
        self._suspects.pop(sequence.key, None)
        self._blocks.release(sequence, forget=forget)
        sequence.status = SequenceStatus.FINISHED
        del self._sequences[sequence.key]


def create_scheduler(config: EngineConfig, num_blocks: int, window: int | None = None) -> Scheduler:
    """The scheduler that an engine's configuration asks for.  window: see BlockManager.  Raises ConfigError."""
    max_num_waiting = 4 * config.max_num_seqs if config.max_num_waiting == "auto" else config.max_num_waiting
    if max_num_waiting < 0:
        raise ConfigError(f"engine.max_num_waiting is {max_num_waiting}, expected auto or 0 and more")
    return Scheduler(
        BlockManager(
            num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            window=window,
            max_chunk=config.max_num_batched_tokens,
        ),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_waiting=max_num_waiting,
    )
