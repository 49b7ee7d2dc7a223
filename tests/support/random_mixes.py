"""Random requests and random company for them, and engines that say from which logits each token was chosen."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.engine.aphrodite_engine import AphroditeEngine
from aphrodited.engine.kv_cache_pool import kv_block_bytes
from aphrodited.engine.windows import least_held
from aphrodited.models.causal_lm import CausalLM
from aphrodited.outputs import TokenLogprobs
from aphrodited.request import EncodeRequest, GenerateRequest, Pooling
from aphrodited.sampling_params import SamplingParams
from tests.support.engine_runs import engine_of
from tests.support.tiny_models import EOS_TOKEN_ID

MAX_MODEL_LEN = 128
BLOCK_SIZE = 4  # small, so that sequences often need another block
NUM_REQUESTS = 12
STRANGER = 1000  # keys from here on are of requests that are only there to be in the way


class Token(NamedTuple):
    """One token of an answer, what was said about it, and the bits of all logits that it was chosen from."""

    token_id: int
    logprobs: TokenLogprobs | None
    logit_bits: str


class WitnessedModel:
    """A model that remembers the logits of the last step, before the sampler overwrites them."""

    def __init__(self, model: CausalLM) -> None:
        self.on_layer: Callable[[], None] | None = None
        self._model = model
        self._logits: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:  # whatever else an engine asks of a model
        return getattr(self._model, name)

    def forward(self, *args: Any) -> Tensor:
        self._model.on_layer = self.on_layer
        return self._model.forward(*args)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        logits = self._model.compute_logits(hidden)
        self._logits.append(logits.clone())
        return logits

    def step(self, *args: Any) -> NDArray[np.float32]:
        logits = self._model.step(*args)
        self._logits.append(torch.from_numpy(logits.copy()))
        return logits

    def take_bits(self) -> list[str]:
        """A digest of each row of logits since the last call."""
        rows = [row for logits in self._logits for row in logits]
        self._logits.clear()
        return [hashlib.sha256(row.numpy().tobytes()).hexdigest() for row in rows]


@dataclass
class Witness:
    """An engine around a model, and every token of every answer it gave."""

    engine: AphroditeEngine
    model: WitnessedModel
    answers: dict[int, list[Token]] = field(default_factory=dict)

    @classmethod
    def of(cls, model: CausalLM, **options: Any) -> Witness:
        witnessed = WitnessedModel(model)
        return cls(engine_of(witnessed, max_model_len=MAX_MODEL_LEN, block_size=BLOCK_SIZE, **options), witnessed)

    def step(self) -> None:
        outputs = [output for output in self.engine.step() if output.embedding is None]
        for output, bits in zip(outputs, self.model.take_bits(), strict=True):  # both in the order of the batch
            assert output.error is None
            (token_id,) = output.token_ids
            logprobs = output.logprobs[0] if output.logprobs else None
            self.answers.setdefault(output.key, []).append(Token(token_id, logprobs, bits))

    def run(self) -> None:
        while self.engine.has_unfinished_requests():
            self.step()


def answers_alone(model: CausalLM, requests: list[GenerateRequest]) -> list[list[Token]]:
    """Each request's answer with nobody beside it, whole and from nothing."""
    witness = Witness.of(model, enable_prefix_caching=False)
    for key, request in enumerate(requests):
        witness.engine.add_request(key, request)
        witness.run()
    return [witness.answers[key] for key in range(len(requests))]


def random_requests(rng: random.Random, vocab_size: int) -> list[GenerateRequest]:
    """Prompts that share beginnings, and every kind of sampling."""
    beginning = [rng.randrange(vocab_size) for _ in range(60)]

    def prompt() -> list[int]:
        start = rng.choice([0, 0, 0, BLOCK_SIZE])  # the same blocks, elsewhere
        own = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 40))]
        return beginning[start : rng.choice([0, 7, 16, 40, 60])] + own

    return [
        GenerateRequest(f"r{i}", prompt(), random_params(rng, vocab_size), priority=rng.choice([-1, 0, 0, 1]))
        for i in range(NUM_REQUESTS)
    ]


def random_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    max_tokens = rng.choice([1, 10, 24, 30])
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.6, 1.0, 2.0]),
        top_k=rng.choice([0, 0, 1, 20]),
        top_p=rng.choice([1.0, 0.9, 0.3]),
        min_p=rng.choice([0.0, 0.05]),
        seed=rng.randrange(2**63),
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, max_tokens // 2]),
        stop_token_ids=tuple(rng.sample(range(vocab_size), 4)),
        ignore_eos=rng.random() < 0.7,
        logprobs=rng.choice([None, 0, 20]),
        presence_penalty=rng.choice([0.0, 0.0, 0.8]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.4]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        logit_bias=rng.choice([None, {EOS_TOKEN_ID: -3.0, rng.randrange(vocab_size): 2.5}]),
    )


def answers_in_company(
    model: CausalLM, requests: list[GenerateRequest], expected: list[list[Token]], rng: random.Random
) -> tuple[list[list[Token]], Counter[str]]:
    """The same answers from an engine of random size, busy with others; of some, only what is left to resume.

    Returns them, each completed by the tokens it was resumed after, and how often what happened.
    """
    witness = _random_engine(model, rng)
    engine, vocab_size = witness.engine, model.config.vocab_size
    happened: Counter[str] = Counter()
    for key in rng.sample(range(len(requests)), 4):  # leaves prefixes in the cache
        params = SamplingParams(max_tokens=3, seed=1)
        engine.add_request(2 * STRANGER + key, GenerateRequest("w", requests[key].prompt_token_ids, params))
    witness.run()

    replayed = [rng.randrange(len(answer)) if rng.random() < 0.4 else 0 for answer in expected]
    waiting = rng.sample(range(len(requests)), len(requests))
    strangers: list[int] = []
    while waiting or engine.has_unfinished_requests():
        for _ in range(rng.choice([0, 0, 1, 1, 4])):
            if waiting:
                key = waiting.pop()
                engine.add_request(key, _resumed(requests[key], expected[key][: replayed[key]]))
                happened["resumed"] += replayed[key] > 0
        if waiting and rng.random() < 0.3:
            strangers.append(_add_stranger(engine, STRANGER + len(strangers), rng, vocab_size))
        if strangers and rng.random() < 0.2:
            happened["aborted"] += engine.abort_request(rng.choice(strangers))
        witness.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)
    happened["preempted"] += stats.num_preemptions
    happened["cached"] += stats.num_cached_tokens
    completed = [expected[key][: replayed[key]] + witness.answers[key] for key in range(len(requests))]
    return completed, happened


def _random_engine(model: CausalLM, rng: random.Random) -> Witness:
    window = model.config.widest_window
    least = MAX_MODEL_LEN // BLOCK_SIZE if window is None else least_held(window, BLOCK_SIZE)  # for one sequence
    num_blocks = rng.choice([least, least + 1, least + 4, 300])
    return Witness.of(
        model,
        max_num_seqs=rng.choice([2, 8, 16, 64]),
        max_num_batched_tokens=rng.choice([16, 17, 31, 64, 2048]),
        kv_cache_memory=num_blocks * kv_block_bytes(model.config, BLOCK_SIZE, model.cache_dtype),
        enable_prefix_caching=rng.random() < 0.7,
        max_num_waiting=100,
    )


def _resumed(request: GenerateRequest, answer: list[Token]) -> GenerateRequest:
    """The request of somebody who has the beginning of its answer already."""
    prompt = request.prompt_token_ids + [token.token_id for token in answer]
    return GenerateRequest(request.request_id, prompt, request.sampling_params, request.priority, len(answer))


def _add_stranger(engine: AphroditeEngine, key: int, rng: random.Random, vocab_size: int) -> int:
    prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 60))]
    priority = rng.choice([-1, 0, 1])
    if rng.random() < 0.3:
        engine.add_request(key, EncodeRequest("s", prompt, rng.choice(list(Pooling)), priority=priority))
    else:
        engine.add_request(key, GenerateRequest("s", prompt, random_params(rng, vocab_size), priority))
    return key
