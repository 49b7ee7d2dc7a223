"""A backend that computes nothing: for drills of the daemon and for measuring everything around the model.

Scheduling, limits, stop tokens and errors are the real engine's. The token at position p is the prompt's at p modulo
the prompt's length, passing over ids that would end the answer, so output is text that the prompt's tokenizer knows.
A token's hidden state is a hash of it, which makes embeddings. Loads no torch.

A config.json in the model's directory may set vocab_size, hidden_size, max_position_embeddings, eos_token_id and
`null_step_s` (seconds a step takes, 0 if absent); without one, DEFAULT_* hold. A `poison_token` there ends the process, as a
crash in native code would, in the first step that has a sequence with that token in it and `poison_after` (0 if absent)
tokens generated.

Drills. A prompt that begins [M, M, drill, argument], M being the last id of the vocabulary, does this:

    drill           argument (0 if the prompt ends before it)
    1 RAISE         step raises once so many tokens were generated: the engine is lost
    2 HANG          step never returns and shows no progress, once so many tokens were generated
    3 SLOW          the first token takes so many seconds, with progress shown all the time
    4 NOT_FINITE    this request alone fails, once so many tokens were generated
    5 LEAK          so many MiB are taken at the first token and never given back
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from aphrodited.config.schema import ModelConfig
from aphrodited.engine.aphrodite_engine import AphroditeEngine
from aphrodited.engine.capacity import AUTO_MEMORY_LIMIT, plan_capacity
from aphrodited.engine.pooling import Pooled, Rows
from aphrodited.engine.scheduler import ScheduledBatch, create_scheduler
from aphrodited.engine.sequence import Sequence
from aphrodited.errors import ModelLoadError
from aphrodited.interfaces import ModelFacts
from aphrodited.outputs import TokenLogprobs
from aphrodited.sampling.sampled import Sampled

DEFAULT_VOCAB_SIZE = 131072
DEFAULT_MAX_MODEL_LEN = 8192
DEFAULT_HIDDEN_SIZE = 64

_BLOCK_BYTES = 16 * 1024  # what a block pretends to take, for engine.kv_cache_memory
_TICK_S = 0.05
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbours end far apart


class Drill(IntEnum):
    """See the module's table."""

    RAISE = 1
    HANG = 2
    SLOW = 3
    NOT_FINITE = 4
    LEAK = 5


class NullModel(msgspec.Struct, frozen=True):
    """What config.json may say."""

    vocab_size: int = DEFAULT_VOCAB_SIZE
    max_position_embeddings: int = DEFAULT_MAX_MODEL_LEN
    eos_token_id: int | list[int] | None = None
    null_step_s: float = 0.0
    hidden_size: Annotated[int, msgspec.Meta(ge=1)] = DEFAULT_HIDDEN_SIZE
    poison_token: int | None = None
    poison_after: int = 0

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        if self.eos_token_id is None:
            return ()
        return (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id)


class DrillError(RuntimeError):
    """Raised by a step on request, as a bug would be."""


class NullRunner:
    """Echoes prompts, at a pace, and misbehaves on request."""

    def __init__(
        self, model: NullModel, *, sleep: Callable[[float], None] = time.sleep, crash: Callable[[], None] = os.abort
    ) -> None:
        self._marker = model.vocab_size - 1
        self._never = frozenset({*model.eos_token_ids, self._marker})
        self._step_s = model.null_step_s
        self._hidden_size = model.hidden_size
        self._poison = model.poison_token
        self._poison_after = model.poison_after
        self._sleep = sleep
        self._leaked: list[bytes] = []
        self._crash = crash

    def execute(self, batch: ScheduledBatch, on_progress: Callable[[], None]) -> list[Sampled | Pooled]:
        """One token or embedding for each entry that reaches its sequence's end."""
        if self._poison is not None and any(self._is_poisoned(entry.sequence) for entry in batch.entries):
            self._crash()
        due = [entry.sequence for entry in batch.entries if entry.reaches_end]
        self._leak(due)
        step_s = max([self._step_s, *(self._drill_pause_s(sequence) for sequence in due)])
        while step_s > 0:
            self._sleep(min(step_s, _TICK_S))
            step_s -= _TICK_S
            on_progress()
        on_progress()
        for entry in batch.entries:
            if entry.sequence.pooler is not None:
                tokens = entry.sequence.token_ids[entry.start : entry.start + entry.num_tokens]
                entry.sequence.pooler.take(self._hidden_states(tokens), entry.start)
        return [self._finish(sequence) for sequence in due]

    def close(self) -> None:
        """There is nothing to release."""

    def _is_poisoned(self, sequence: Sequence) -> bool:
        return sequence.num_output_tokens >= self._poison_after and self._poison in sequence.token_ids

    def _drill(self, sequence: Sequence) -> tuple[int, int]:
        prompt = sequence.token_ids[: sequence.num_prompt_tokens - sequence.num_replayed][:4]
        if len(prompt) < 3 or prompt[0] != self._marker or prompt[1] != self._marker:
            return 0, 0
        return prompt[2], prompt[3] if len(prompt) == 4 else 0

    def _drill_pause_s(self, sequence: Sequence) -> float:
        drill, argument = self._drill(sequence)
        if drill == Drill.SLOW:
            return argument if sequence.num_output_tokens == 0 else 0.0
        if sequence.num_output_tokens < argument:
            return 0.0
        if drill == Drill.RAISE:
            raise DrillError(f"drill: this step was asked to fail after {argument} tokens")
        while drill == Drill.HANG:
            self._sleep(3600.0)
        return 0.0

    def _leak(self, due: list[Sequence]) -> None:
        for sequence in due:
            drill, argument = self._drill(sequence)
            if drill == Drill.LEAK and sequence.num_output_tokens == 0:
                self._leaked.append(b"\1" * (argument * 1024**2))

    def _finish(self, sequence: Sequence) -> Sampled | Pooled:
        drill, argument = self._drill(sequence)
        is_finite = drill != Drill.NOT_FINITE or sequence.num_output_tokens < argument
        if sequence.pooler is not None:
            return sequence.pooler.finish() if is_finite else Pooled(None)
        return self._sample(sequence) if is_finite else Sampled(None)

    def _hidden_states(self, tokens: array[int]) -> Rows:
        """[T, E], numbers from -1 to 1."""
        mixed = np.multiply.outer(np.array(tokens, np.uint64) + 1, np.arange(1, self._hidden_size + 1, dtype=np.uint64))
        return (mixed * _MIX >> 11).astype(np.float64) * 2.0**-52 - 1.0

    def _sample(self, sequence: Sequence) -> Sampled:
        token_id = self._echo(sequence)
        alternatives = sequence.params.logprobs
        if alternatives is None:
            return Sampled(token_id)
        return Sampled(token_id, TokenLogprobs(token_id, 0.0, 1, [token_id][:alternatives], [0.0][:alternatives]))

    def _echo(self, sequence: Sequence) -> int:
        num_own = sequence.num_prompt_tokens - sequence.num_replayed
        never = self._never | sequence.sampling_row().forbidden_token_ids
        for position in range(len(sequence), len(sequence) + num_own):
            token_id = sequence.token_ids[position % num_own]
            if token_id not in never:
                return token_id
        return next((token_id for token_id in range(self._marker) if token_id not in never), self._marker)


def create_null_backend(config: ModelConfig) -> AphroditeEngine:
    """The null engine for a configured model. Raises ConfigError."""
    model = _read_model(Path(config.path) / "config.json")
    capacity = plan_capacity(
        config,
        max_position_embeddings=model.max_position_embeddings,
        block_bytes=_BLOCK_BYTES,
        free_memory=4 * AUTO_MEMORY_LIMIT,
    )
    engine = config.engine
    facts = ModelFacts(
        name=config.name,
        max_model_len=capacity.max_model_len,
        vocab_size=model.vocab_size,
        eos_token_ids=model.eos_token_ids,
        block_size=engine.block_size,
        num_blocks=capacity.num_blocks,
        max_num_seqs=engine.max_num_seqs,
        dtype="none",
        fingerprint=f"null-{model.vocab_size}-{','.join(map(str, model.eos_token_ids))}",
        deterministic=True,
        backend="null",
        embedding_size=model.hidden_size,
    )
    return AphroditeEngine(facts, create_scheduler(engine, capacity.num_blocks), NullRunner(model))


def _read_model(path: Path) -> NullModel:
    try:
        return msgspec.json.decode(path.read_bytes(), type=NullModel)
    except (FileNotFoundError, NotADirectoryError):
        return NullModel()
    except (OSError, msgspec.DecodeError) as error:
        raise ModelLoadError(f"{path}: {error}") from error
