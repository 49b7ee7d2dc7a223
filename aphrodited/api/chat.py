"""POST /v1/chat/completions."""

from __future__ import annotations

import msgspec
from aiohttp import web

from aphrodited.api.answers import Head
from aphrodited.api.body import read_body
from aphrodited.api.chat_answer import ChatAnswer
from aphrodited.api.context import CONTEXT
from aphrodited.api.generation import Plan
from aphrodited.api.logprobs import PromptScores
from aphrodited.api.notes import NOTES
from aphrodited.api.openai_types import ChatCompletionRequest
from aphrodited.api.parameters import chat_params, check_prompt, number_of_choices, with_seeds
from aphrodited.api.prompts import chat_prompt, with_bad_words

_decoder = msgspec.json.Decoder(ChatCompletionRequest)


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    context = request.app[CONTEXT]
    context.admission.check_open()
    body = await read_body(request, _decoder)
    model = context.choose(request, body.model)
    n = number_of_choices(body.n, context.config.max_choices)
    params = chat_params(body)
    tokenizer = model.usable_tokenizer()
    params = await with_bad_words(params, body.bad_words, tokenizer)
    notes = request[NOTES]
    tools = None if body.tool_choice == "none" else body.tools
    token_ids = await chat_prompt(body, tools, tokenizer, notes.body_size)
    request_id = body.request_id or notes.request_id
    fingerprints = context.quarantine.admit(model, [token_ids], params, request_id)
    facts = await context.admission.wait_for_engine(model, notes.body_size, notes.arrived_at_s)
    check_prompt(token_ids, params, facts, "messages")

    plan = Plan(request_id, model, facts, [token_ids], with_seeds(params, n), n, body.priority or 0, fingerprints)
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    head = Head(f"chatcmpl-{request_id}", model.name, facts.fingerprint)
    scores = PromptScores(token_ids, tokenizer, body.prompt_logprobs)
    answer = ChatAnswer(head, tokenizer, include_usage, [scores] * n)
    if body.stream:
        return await context.generator.answer_stream(request, plan, answer, include_usage)
    return await context.generator.answer_whole(request, plan, answer)
