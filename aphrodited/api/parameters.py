"""From a request's fields to SamplingParams, one per choice, with an error for what this version cannot do.

Knows no tokenizer. Limits that depend on the model are checked against its facts.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from aphrodited.api.openai_types import ChatCompletionRequest, CompletionRequest, GenerationFields
from aphrodited.api.structured import grammar_of
from aphrodited.errors import ContextLengthError, RequestError
from aphrodited.interfaces import ModelFacts
from aphrodited.sampling_params import MAX_SEED, SamplingParams

T = TypeVar("T")

COMPLETION_MAX_TOKENS = 16  # what OpenAI's /v1/completions takes if max_tokens is not given
MAX_STOP_TOKEN_IDS = 128
MAX_TOKEN_ID_DIGITS = 10

_NEUTRAL: dict[str, tuple[object, ...]] = {
    # of chat
    "functions": ([],),
    "function_call": ("none", "auto"),
    "tool_choice": ("none", "auto"),
    "chat_template": (),
    # of completions
    "suffix": ("",),
}


def refuse_unsupported(request: msgspec.Struct) -> None:
    """Raise RequestError for a field that this version cannot honour, unless its value changes nothing."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(request, name, None)
        if value is not None and value not in neutral:
            raise RequestError(f"{name} is not supported by this version with that value; leave it out", param=name)


def chat_params(request: ChatCompletionRequest) -> SamplingParams:
    """Raises RequestError, with `param`, for whatever is wrong or not supported."""
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    num_logprobs = (request.top_logprobs or 0) if request.logprobs else None
    if request.max_completion_tokens is None:
        return _params(request, request.max_tokens, num_logprobs, {"logprobs": "top_logprobs"})
    names = {"logprobs": "top_logprobs", "max_tokens": "max_completion_tokens"}
    return _params(request, request.max_completion_tokens, num_logprobs, names)


def completion_params(request: CompletionRequest) -> SamplingParams:
    """Raises RequestError, with `param`, for whatever is wrong or not supported."""
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise RequestError("best_of must equal n: choosing among more answers is not supported", param="best_of")
    params = _params(request, request.max_tokens, request.logprobs, {})
    if request.echo and request.logprobs is not None:
        return msgspec.structs.replace(params, prompt_logprobs=max(request.logprobs, request.prompt_logprobs or 0))
    return params


def _params(
    request: GenerationFields, max_tokens: int | None, logprobs: int | None, names: dict[str, str]
) -> SamplingParams:
    refuse_unsupported(request)
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream to be true", param="stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError("prompt_logprobs cannot be streamed", param="prompt_logprobs")
    defaults = SamplingParams()
    params = SamplingParams(
        temperature=_given(request.temperature, defaults.temperature),
        top_k=_top_k(request.top_k),
        top_p=_given(request.top_p, defaults.top_p),
        min_p=_given(request.min_p, defaults.min_p),
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=_given(request.min_tokens, defaults.min_tokens),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=_given(request.ignore_eos, defaults.ignore_eos),
        logprobs=logprobs,
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        include_stop_str_in_output=_given(request.include_stop_str_in_output, defaults.include_stop_str_in_output),
        skip_special_tokens=_given(request.skip_special_tokens, defaults.skip_special_tokens),
        presence_penalty=_given(request.presence_penalty, defaults.presence_penalty),
        frequency_penalty=_given(request.frequency_penalty, defaults.frequency_penalty),
        repetition_penalty=_given(request.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_logit_bias(request.logit_bias),
        allowed_token_ids=tuple(request.allowed_token_ids) if request.allowed_token_ids else None,
        prompt_logprobs=request.prompt_logprobs,
        grammar=grammar_of(request),
    )
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise RequestError(f"stop_token_ids must be at most {MAX_STOP_TOKEN_IDS} ids", param="stop_token_ids")
    try:
        params.validate()
    except RequestError as error:
        name = names.get(error.param or "")
        if name is None:
            raise
        raise RequestError(str(error).replace(error.param or "", name), param=name) from error
    return params


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _logit_bias(given: dict[str, float] | None) -> dict[int, float] | None:
    """JSON's keys are texts."""
    if not given:
        return None
    if not all(key.isascii() and key.isdigit() and len(key) <= MAX_TOKEN_ID_DIGITS for key in given):
        raise RequestError("logit_bias must have token ids as its keys", param="logit_bias")
    return {int(key): value for key, value in given.items()}


def _top_k(top_k: int | None) -> int:
    return 0 if top_k is None or top_k == -1 else top_k  # -1 is how vLLM's clients say "off"


def number_of_choices(n: int | None, max_choices: int) -> int:
    if n is None:
        return 1
    if not 1 <= n <= max_choices:
        raise RequestError(f"n must be from 1 to {max_choices}", param="n")
    return n


def with_seeds(params: SamplingParams, n: int) -> list[SamplingParams]:
    """The parameters of n choices. Without a seed each gets a random one; with one, choice i gets `choice_seed`."""
    seed = secrets.randbelow(MAX_SEED) if params.seed is None else params.seed
    return [msgspec.structs.replace(params, seed=choice_seed(seed, index)) for index in range(n)]


def choice_seed(seed: int, index: int) -> int:
    """f(seed, i): the seed itself for choice 0, else 63 bits of SHA-256 over "seed:i" in decimal digits."""
    if index == 0:
        return seed
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") & MAX_SEED


def default_max_tokens(params: SamplingParams, num_prompt_tokens: int, facts: ModelFacts) -> SamplingParams:
    """The parameters with what a completion without max_tokens may generate: 16 tokens, or what the model has left."""
    if params.max_tokens is not None:
        return params
    left = max(1, facts.max_model_len - num_prompt_tokens)
    params = msgspec.structs.replace(params, max_tokens=min(COMPLETION_MAX_TOKENS, left))
    params.validate()
    return params


def check_prompt(token_ids: Sequence[int], params: SamplingParams, facts: ModelFacts, param: str) -> None:
    """Raise RequestError or ContextLengthError, with `param`, for a prompt that this model cannot take."""
    check_token_ids(token_ids, facts, param)
    for name, ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("allowed_token_ids", params.allowed_token_ids),
        ("logit_bias", params.logit_bias),
    ):
        if ids and max(ids) >= facts.vocab_size:
            raise RequestError(f"{name} must be within the vocabulary, which is 0 to {facts.vocab_size - 1}", param=name)
    if len(token_ids) + (params.max_tokens or 1) > facts.max_model_len:
        asked = f" and max_tokens asks for {params.max_tokens} more" if params.max_tokens else ""
        raise ContextLengthError(
            f"{param} has {len(token_ids)} tokens{asked}; the model takes {facts.max_model_len} in all", param=param
        )


def check_token_ids(token_ids: Sequence[int], facts: ModelFacts, param: str) -> None:
    """Raise RequestError, with `param`, for a prompt without tokens or with ids that the model does not know."""
    if not token_ids:
        raise RequestError(f"{param} is empty: it has no tokens", param=param)
    if min(token_ids) < 0 or max(token_ids) >= facts.vocab_size:
        raise RequestError(
            f"{param} has token ids outside the vocabulary, which is 0 to {facts.vocab_size - 1}", param=param
        )
