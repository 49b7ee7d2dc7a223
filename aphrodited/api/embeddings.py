"""POST /v1/embeddings."""

from __future__ import annotations

import base64

import msgspec
from aiohttp import web

from aphrodited.api.answers import encode_json
from aphrodited.api.body import read_body
from aphrodited.api.context import CONTEXT
from aphrodited.api.encodings import Encodings
from aphrodited.api.notes import NOTES
from aphrodited.api.openai_types import MAX_INPUTS, EmbeddingRequest
from aphrodited.api.parameters import check_token_ids
from aphrodited.api.prompts import given_prompts, work
from aphrodited.errors import ContextLengthError, RequestError
from aphrodited.interfaces import ModelFacts
from aphrodited.outputs import EmbeddingOutput
from aphrodited.request import EncodeRequest, Pooling
from aphrodited.tokenizer.tokenizer import Tokenizer

MAX_NUMBERS = 4 * 1024**2
"""In one answer: 16 MB of float32, five times that as JSON."""

_decoder = msgspec.json.Decoder(EmbeddingRequest)


async def create_embeddings(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    context.admission.check_open()
    body = await read_body(request, _decoder)
    notes = request[NOTES]
    model = context.choose(request, body.model)
    prompts = await _token_ids(body, model.usable_tokenizer())
    request_id = body.request_id or notes.request_id
    options: dict[str, object] = {"pooling": body.pooling or Pooling.LAST, "normalize": body.normalize is not False}
    fingerprints = context.quarantine.admit(model, prompts, options, request_id)
    facts = await context.admission.wait_for_engine(model, notes.body_size, notes.arrived_at_s)
    _check(body, prompts, facts)

    metrics = context.generator.metrics
    notes.usage.num_prompt_tokens = sum(map(len, prompts))
    metrics.prompt_tokens(model.name, notes.usage.num_prompt_tokens)
    write = _as_base64 if body.encoding_format == "base64" else _as_numbers
    resumer = context.generator.resumer
    encodings = Encodings(
        _requests(body, prompts, request_id, fingerprints),
        lambda encode_request: resumer.encode(model, encode_request, facts),
        write,
    )
    with context.admission.running(encodings, notes.arrived_at_s):
        written = await encodings.run()
    metrics.embeddings(model.name, len(written))
    return web.Response(
        body=_answer(written, model.name, notes.usage.num_prompt_tokens), content_type="application/json"
    )


async def _token_ids(body: EmbeddingRequest, tokenizer: Tokenizer) -> list[list[int]]:
    """Raises RequestError for an input that is empty or of a wrong type."""
    given = given_prompts(body.input, "input", MAX_INPUTS)
    for index, prompt in enumerate(given):
        if not prompt:
            raise RequestError(f"input[{index}] is empty: there is nothing to embed", param="input")
    adds = body.add_special_tokens is not False

    def encode() -> list[list[int]]:
        return [tokenizer.encode(p, add_special_tokens=adds) if isinstance(p, str) else p for p in given]

    return await work(sum(len(prompt) for prompt in given if isinstance(prompt, str)), encode)


def _check(body: EmbeddingRequest, prompts: list[list[int]], facts: ModelFacts) -> None:
    """Raise RequestError for what this model cannot embed."""
    size = facts.embedding_size
    if not size:
        raise RequestError(
            f"The model {facts.name} gives no embeddings", param="model", code="embeddings_not_supported"
        )
    if body.dimensions is not None and body.dimensions != size:
        raise RequestError(
            f"dimensions must be {size} or left out: embeddings of this model cannot be cut", param="dimensions"
        )
    if len(prompts) * size > MAX_NUMBERS:
        raise RequestError(f"input must have at most {MAX_NUMBERS // size} prompts for this model", param="input")
    for token_ids in prompts:
        check_token_ids(token_ids, facts, "input")
        if len(token_ids) > facts.max_model_len:
            raise ContextLengthError(
                f"input has a prompt of {len(token_ids)} tokens; the model takes {facts.max_model_len}", param="input"
            )


def _requests(
    body: EmbeddingRequest, prompts: list[list[int]], request_id: str, fingerprints: list[bytes]
) -> list[EncodeRequest]:
    labels = [request_id] if len(prompts) == 1 else [f"{request_id}-{index}" for index in range(len(prompts))]
    pooling, normalize, priority = body.pooling or Pooling.LAST, body.normalize is not False, body.priority or 0
    return [
        EncodeRequest(label, prompt, pooling, normalize, priority, fingerprint)
        for label, prompt, fingerprint in zip(labels, prompts, fingerprints, strict=True)
    ]


def _as_numbers(index: int, output: EmbeddingOutput) -> bytes:
    return encode_json({"object": "embedding", "index": index, "embedding": output.values})


def _as_base64(index: int, output: EmbeddingOutput) -> bytes:
    return encode_json({"object": "embedding", "index": index, "embedding": base64.b64encode(output.data).decode()})


def _answer(written: list[bytes], model: str, num_tokens: int) -> bytes:
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    tail = encode_json({"model": model, "usage": usage})[1:]
    return b'{"object":"list","data":[' + b",".join(written) + b"]," + tail
