"""What an engine gives back: TokenOutput per step, RequestOutput or EmbeddingOutput to the caller.

TokenOutput is a delta and crosses processes; RequestOutput is put together where the text is. Of deltas there are very
many, and none can hold itself: the garbage collector does not look at them (gc=False).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a sequence ended. A death or a deadline is never one of these: it is an exception."""

    STOP = "stop"  # an EOS or stop token, or (decided by the caller) a stop string
    LENGTH = "length"  # max_tokens or the end of the context
    ABORT = "abort"  # the caller asked for it
    ERROR = "error"  # this request alone failed; TokenOutput.error says why


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities of one sampled token and of its top alternatives, most likely first.

    Natural logarithms of the unmodified softmax (before temperature, penalties and filters).
    """

    token_id: int
    logprob: float
    rank: int  # 1 is the most likely token
    top_token_ids: list[int]
    top_logprobs: list[float]


class TokenOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step made for one sequence: new tokens only.

    key: as given to `EngineBackend.add_request`.  stop_token_id: the token that ended the sequence if
    finish_reason is STOP; it is the last of token_ids.  error: (code, message) if finish_reason is ERROR.
    num_cached_tokens: prompt tokens served from the prefix cache, sent with the first token only.
    embedding: what an EncodeRequest asked for, in its one output; see EmbeddingOutput.data.
    prompt_logprobs: see RequestOutput; sent with the first token only.  error_param: the field that the error concerns.
    """

    key: int
    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0
    error: tuple[str, str] | None = None
    embedding: bytes | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    error_param: str | None = None


class CompletionOutput(msgspec.Struct):
    """One sequence so far, and what the last step added to it.

    text, token_ids and logprobs are cumulative (the same lists grow from one RequestOutput to the next);
    the new_* fields hold the additions only. stop_reason: the stop string, or the stop token id if it was
    one of stop_token_ids, else None.
    """

    index: int = 0
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    new_text: str = ""
    new_token_ids: list[int] = []
    new_logprobs: list[TokenLogprobs] | None = None


class RequestOutput(msgspec.Struct):
    """A request's answer so far. `finished` is true on the last one and on no other.

    prompt_logprobs: of the prompt's tokens from the second on, since nothing comes before the first; None if they were
    not asked for or are not there yet.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A prompt's embedding. data: its numbers, float32 in little-endian order."""

    request_id: str
    prompt_token_ids: list[int]
    data: bytes
    num_cached_tokens: int = 0

    @property
    def values(self) -> tuple[float, ...]:
        return struct.unpack(f"<{len(self.data) // 4}f", self.data)
