"""Runs requests through an engine in this process, and says exactly what it computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from aphrodited.config.schema import EngineConfig, ModelConfig
from aphrodited.engine.aphrodite_engine import AphroditeEngine
from aphrodited.engine.embedded_backend import create_engine
from aphrodited.loaders import load_model
from aphrodited.models.causal_lm import CausalLM
from aphrodited.outputs import TokenOutput
from aphrodited.request import EncodeRequest, GenerateRequest, Pooling
from aphrodited.sampling_params import SamplingParams

Run = list[tuple[int, float]]  # token id and its log-probability, for each token of one request


def load(path: Path, **options: Any) -> CausalLM:
    """A model, without progress reports."""
    return load_model(path, report=lambda progress, what: None, **options)


def engine_of(
    model: CausalLM, *, max_model_len: int = 128, path: Path = Path("-"), **options: Any
) -> AphroditeEngine:
    """An engine around it; options are those of models[].engine.  path: of the model, for grammars."""
    config = ModelConfig(name="golden", path=str(path), max_model_len=max_model_len, engine=EngineConfig(**options))
    return create_engine(config, model)


def answer_all(engine: AphroditeEngine, requests: list[GenerateRequest]) -> list[TokenOutput]:
    """All requests at once, to their ends: everything that each was given, as one output."""
    answers = [TokenOutput(key, [], logprobs=[]) for key in range(len(requests))]
    for key, request in enumerate(requests):
        engine.add_request(key, request)
    while engine.has_unfinished_requests():
        for output in engine.step():
            before = answers[output.key]
            answers[output.key] = msgspec.structs.replace(
                output,
                token_ids=before.token_ids + output.token_ids,
                logprobs=(before.logprobs or []) + (output.logprobs or []),
                num_cached_tokens=before.num_cached_tokens or output.num_cached_tokens,
                prompt_logprobs=before.prompt_logprobs or output.prompt_logprobs,
            )
    return answers


def generate(engine: AphroditeEngine, prompts: list[list[int]], params: SamplingParams) -> list[Run]:
    """All prompts at once, to their ends."""
    runs: list[Run] = [[] for _ in prompts]
    for key, prompt in enumerate(prompts):
        engine.add_request(key, GenerateRequest(str(key), prompt, params))
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.error is None
            assert output.logprobs is not None
            runs[output.key] += [(t, p.logprob) for t, p in zip(output.token_ids, output.logprobs, strict=True)]
    return runs


def token_ids(run: Run) -> list[int]:
    return [token_id for token_id, _ in run]


def embed(engine: AphroditeEngine, prompts: list[list[int]], pooling: Pooling, *, normalize: bool = True) -> list[bytes]:
    """All prompts at once; their embeddings."""
    for key, prompt in enumerate(prompts):
        engine.add_request(key, EncodeRequest(str(key), prompt, pooling, normalize))
    embeddings: dict[int, bytes] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert output.embedding is not None
            embeddings[output.key] = output.embedding
    return [embeddings[key] for key in range(len(prompts))]
