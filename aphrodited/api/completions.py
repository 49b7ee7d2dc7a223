"""POST /v1/completions."""

from __future__ import annotations

import msgspec
from aiohttp import web

from aphrodited.api.answers import Head
from aphrodited.api.body import read_body
from aphrodited.api.completion_answer import CompletionAnswer
from aphrodited.api.context import CONTEXT
from aphrodited.api.generation import Plan
from aphrodited.api.logprobs import PromptScores
from aphrodited.api.notes import NOTES
from aphrodited.api.openai_types import MAX_PROMPTS, CompletionRequest
from aphrodited.api.parameters import (
    check_prompt,
    completion_params,
    default_max_tokens,
    number_of_choices,
    with_seeds,
)
from aphrodited.api.prompts import given_prompts, with_bad_words, work
from aphrodited.tokenizer.tokenizer import Tokenizer

_decoder = msgspec.json.Decoder(CompletionRequest)


async def create_completion(request: web.Request) -> web.StreamResponse:
    context = request.app[CONTEXT]
    context.admission.check_open()
    body = await read_body(request, _decoder)
    model = context.choose(request, body.model)
    n = number_of_choices(body.n, context.config.max_choices)
    params = completion_params(body)
    given = given_prompts(body.prompt, "prompt", MAX_PROMPTS)
    tokenizer = model.usable_tokenizer()
    params = await with_bad_words(params, body.bad_words, tokenizer)
    prompts = [await _token_ids(prompt, tokenizer, body.add_special_tokens is not False) for prompt in given]
    notes = request[NOTES]
    request_id = body.request_id or notes.request_id
    fingerprints = context.quarantine.admit(model, prompts, params, request_id)
    facts = await context.admission.wait_for_engine(model, notes.body_size, notes.arrived_at_s)
    choices = []
    for token_ids in prompts:
        check_prompt(token_ids, params, facts, "prompt")
        choices += with_seeds(default_max_tokens(params, len(token_ids), facts), n)

    plan = Plan(request_id, model, facts, prompts, choices, n, body.priority or 0, fingerprints)
    include_usage = bool(body.stream_options and body.stream_options.include_usage)
    head = Head(f"cmpl-{request_id}", model.name, facts.fingerprint)
    echoes = [_echo(prompt, tokenizer) if body.echo else "" for prompt in given for _ in range(n)]
    num_echoed = body.logprobs if body.echo else None
    scores = [PromptScores(ids, tokenizer, body.prompt_logprobs, num_echoed) for ids in prompts for _ in range(n)]
    answer = CompletionAnswer(head, tokenizer, include_usage, scores, echoes)
    if body.stream:
        return await context.generator.answer_stream(request, plan, answer, include_usage)
    return await context.generator.answer_whole(request, plan, answer)


async def _token_ids(prompt: str | list[int], tokenizer: Tokenizer, add_special_tokens: bool) -> list[int]:
    if isinstance(prompt, str):
        return await work(len(prompt), lambda: tokenizer.encode(prompt, add_special_tokens=add_special_tokens))
    return prompt


def _echo(prompt: str | list[int], tokenizer: Tokenizer) -> str:
    return prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special_tokens=True)
