"""What is asked of an engine: one GenerateRequest or EncodeRequest per sequence.

Token ids only: text, templates and stop strings stay with the caller.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from aphrodited.sampling_params import SamplingParams


class GenerateRequest(msgspec.Struct, frozen=True, array_like=True, tag="generate"):
    """Generate tokens after a prompt.

    request_id is a label for logs; the engine's key is the one given to `EngineBackend.add_request`.
    num_replayed: the last k prompt tokens were output of an earlier life of this request; they count as output in every
    limit, penalty and grammar.
    priority: lower runs first; equal priorities run in order of arrival.
    fingerprint: 16 bytes that stay the same over all its lives, by which it is known if an engine dies; empty: not known.
    alone_until: it has no company in a batch before so many of its tokens, the prompt's included, are computed.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    priority: int = 0
    num_replayed: int = 0
    fingerprint: bytes = b""
    alone_until: int = 0


class Pooling(StrEnum):
    """Which of a prompt's hidden states, after the model's final norm, make its embedding."""

    LAST = "last"  # the last token's: the only one that has seen the whole prompt
    MEAN = "mean"  # the mean over all tokens


class EncodeRequest(msgspec.Struct, frozen=True, array_like=True, tag="encode"):
    """Embed a prompt. Engines that cannot embed answer with a RequestError, as for a pooling that they do not know.

    pooling: a value of Pooling.  normalize: scale the embedding to length 1.  priority, fingerprint, alone_until: as of a
    GenerateRequest.
    """

    request_id: str
    prompt_token_ids: list[int]
    pooling: str = Pooling.LAST
    normalize: bool = True
    priority: int = 0
    fingerprint: bytes = b""
    alone_until: int = 0


EngineRequest = GenerateRequest | EncodeRequest
