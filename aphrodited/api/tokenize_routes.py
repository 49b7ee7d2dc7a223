"""POST /tokenize and /detokenize, also under /v1: the models' tokenizers, without an engine."""

from __future__ import annotations

import msgspec
from aiohttp import web

from aphrodited.api.body import read_body
from aphrodited.api.context import CONTEXT
from aphrodited.api.notes import NOTES
from aphrodited.api.openai_types import DetokenizeRequest, TokenizeRequest
from aphrodited.api.parameters import refuse_unsupported
from aphrodited.api.prompts import INLINE_CHARS, chat_prompt, work
from aphrodited.errors import RequestError

_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)


async def tokenize(request: web.Request) -> web.Response:
    body = await read_body(request, _tokenize)
    model = request.app[CONTEXT].choose(request, body.model)
    refuse_unsupported(body)
    tokenizer = model.usable_tokenizer()
    if body.messages is not None:
        token_ids = await chat_prompt(body, body.tools, tokenizer, request[NOTES].body_size)
    elif body.prompt is not None:
        text, adds = body.prompt, body.add_special_tokens is not False
        token_ids = await work(len(text), lambda: tokenizer.encode(text, add_special_tokens=adds))
    else:
        raise RequestError("prompt or messages must be given", param="prompt")
    facts = model.client.facts
    return _json(
        {"count": len(token_ids), "max_model_len": facts.max_model_len if facts else None, "tokens": token_ids}
    )


async def detokenize(request: web.Request) -> web.Response:
    body = await read_body(request, _detokenize)
    model = request.app[CONTEXT].choose(request, body.model)
    tokenizer = model.usable_tokenizer()
    facts = model.client.facts
    vocab_size = max(tokenizer.vocab_size, facts.vocab_size if facts else 0)  # models may have unnamed rows
    if any(not 0 <= token_id < vocab_size for token_id in body.tokens):
        raise RequestError(f"tokens must be from 0 to {vocab_size - 1}", param="tokens")
    skips = bool(body.skip_special_tokens)
    size = len(body.tokens) * INLINE_CHARS // 2048
    text = await work(size, lambda: tokenizer.decode(body.tokens, skip_special_tokens=skips))
    return _json({"prompt": text})


def _json(body: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
