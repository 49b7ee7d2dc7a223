"""What is asked of an engine: one GenerateRequest per sequence.

Token ids only: text, templates and stop strings stay with the caller.
"""

from __future__ import annotations

import msgspec

from aphrodited.sampling_params import SamplingParams


class GenerateRequest(msgspec.Struct, frozen=True, array_like=True, tag="generate"):
    """Generate tokens after a prompt.

    request_id is a label for logs; the engine's key is the one given to `EngineBackend.add_request`.
    num_replayed: the last k prompt tokens were output of an earlier life of this request.
    priority: lower runs first; equal priorities run in order of arrival.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    priority: int = 0
    num_replayed: int = 0


class EncodeRequest(msgspec.Struct, frozen=True, array_like=True, tag="encode"):
    """Embed a prompt. Engines that cannot embed answer with a RequestError."""

    request_id: str
    prompt_token_ids: list[int]
    pooling: str = "last"
    normalize: bool = True


EngineRequest = GenerateRequest | EncodeRequest
