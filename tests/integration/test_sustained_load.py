"""Thousands of random requests, good and bad, some aborted: each ends exactly once, and nothing is left behind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from aphrodited.engine.aphrodite_engine import AphroditeEngine
from aphrodited.engine.block_manager import BlockManager
from aphrodited.engine.kv_cache_pool import kv_block_bytes
from aphrodited.engine.scheduler import Scheduler
from aphrodited.errors import ContextLengthError, QueueFullError, RequestError
from aphrodited.interfaces import ModelFacts
from aphrodited.outputs import TokenOutput
from aphrodited.request import EncodeRequest, EngineRequest, GenerateRequest, Pooling
from aphrodited.sampling_params import SamplingParams
from tests.support.engine_runs import engine_of, load
from tests.support.scheduler_rig import EOS, CheckedMemory
from tests.support.tiny_models import VOCAB_SIZE, write_tiny_llama_dir

BLOCK_SIZE = 4
MAX_MODEL_LEN = 64


class Crowd:
    """Adds requests to an engine, some of which it must refuse, aborts some, and counts how each one ended."""

    def __init__(self, engine: AphroditeEngine, seed: int) -> None:
        self.engine = engine
        self.accepted: dict[int, EngineRequest] = {}
        self.ended: Counter[int] = Counter()
        self.refused: Counter[type[RequestError]] = Counter()
        self.num_aborted = 0
        self.num_tokens: Counter[int] = Counter()
        self._rng = random.Random(seed)
        self._running: list[int] = []  # and some that ended, so that those are aborted too

    def run(self, num_requests: int, before_add: Callable[[int], None] = lambda key: None) -> None:
        """Until so many were accepted and all of them ended."""
        rng = self._rng
        while len(self.accepted) < num_requests or self.engine.has_unfinished_requests():
            for _ in range(rng.choice([0, 0, 1, 2, 5, 40]) if len(self.accepted) < num_requests else 0):
                self._add(len(self.accepted), before_add)
            for _ in range(rng.choice([0, 0, 0, 1, 3])):
                self._abort_one()
            for output in self.engine.step():
                self._take(output)

    def _add(self, key: int, before_add: Callable[[int], None]) -> None:
        request = random_request(self._rng, self.engine.facts.vocab_size)
        before_add(key)
        try:
            self.engine.add_request(key, request)
        except RequestError as error:
            self.refused[type(error)] += 1
            return
        self.accepted[key] = request
        self._running.append(key)

    def _abort_one(self) -> None:
        if self._running:
            key = self._running.pop(self._rng.randrange(len(self._running)))
            was_unfinished = self.engine.abort_request(key)
            assert was_unfinished is (self.ended[key] == 0)
            self.num_aborted += was_unfinished
            self.ended[key] += was_unfinished

    def _take(self, output: TokenOutput) -> None:
        assert not self.ended[output.key], "an output after the end"
        self.num_tokens[output.key] += len(output.token_ids)
        self.ended[output.key] += output.finish_reason is not None

    def check(self) -> None:
        """Everybody ended once, with no more than was asked for, and nothing is left."""
        assert self.ended == dict.fromkeys(self.accepted, 1)
        for key, request in self.accepted.items():
            if isinstance(request, GenerateRequest):
                assert self.num_tokens[key] <= (request.sampling_params.max_tokens or MAX_MODEL_LEN)
        stats = self.engine.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)
        assert stats.num_aborted == self.num_aborted
        assert stats.num_finished + stats.num_aborted == len(self.accepted)
        assert stats.num_generated_tokens == self.num_tokens.total()
        assert stats.num_preemptions > 0
        assert stats.num_cached_tokens > 0
        assert set(self.refused) == {ContextLengthError, QueueFullError, RequestError}


def random_request(rng: random.Random, vocab_size: int) -> EngineRequest:
    """One in twenty cannot be served."""
    length = rng.choice([1, 2, 5, 9, 17, 40]) if rng.random() < 0.97 else rng.randint(MAX_MODEL_LEN, 100)
    prompt = [3 + i % 5 for i in range(rng.choice([0, length]))] + [rng.randrange(vocab_size) for _ in range(length)]
    prompt = prompt[:length]
    if rng.random() < 0.1:
        return EncodeRequest("e", prompt, rng.choice(list(Pooling)), priority=rng.randint(0, 2))
    params = SamplingParams(
        temperature=rng.choice([0.0, 1.0, 1.0, -1.0 if rng.random() < 0.05 else 0.5]),
        top_p=rng.choice([1.0, 0.9]),
        max_tokens=rng.choice([1, 3, 10, 30, None if rng.random() < 0.1 else 2]),
        min_tokens=rng.choice([0, 0, 1]),
        ignore_eos=rng.random() < 0.5,
        seed=rng.randrange(1000),
    )
    return GenerateRequest("g", prompt, params, rng.randint(0, 2), num_replayed=rng.choice([0, 0, 0, length // 2]))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def test_ten_thousand_requests_end_once_and_leave_every_block_free() -> None:
    blocks, memory = BlockManager(48, BLOCK_SIZE), CheckedMemory(BLOCK_SIZE)
    scheduler = Scheduler(blocks, max_num_seqs=12, max_num_batched_tokens=48, max_num_waiting=40)
    facts = ModelFacts(
        name="checked", max_model_len=MAX_MODEL_LEN, vocab_size=50, eos_token_ids=(EOS,), block_size=BLOCK_SIZE,
        num_blocks=48, max_num_seqs=12, dtype="none", fingerprint="", deterministic=True, backend="checked",
        embedding_size=1,
    )  # fmt: skip
    rng = random.Random(2)
    crowd = Crowd(AphroditeEngine(facts, scheduler, memory), seed=1)

    def make_some_fail(key: int) -> None:
        if rng.random() < 0.02:
            memory.fails.add(key)

    crowd.run(10_000, make_some_fail)
    crowd.check()
    assert blocks.num_free_blocks == blocks.num_blocks
    assert not any(blocks._ref_counts)


def test_hundreds_of_requests_through_a_model_end_once_and_leave_every_block_free(tmp_path: Path) -> None:
    model = load(write_tiny_llama_dir(tmp_path))
    engine = engine_of(
        model,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        max_num_seqs=12,
        max_num_batched_tokens=48,
        max_num_waiting=40,
        kv_cache_memory=48 * kv_block_bytes(model.config, BLOCK_SIZE, model.cache_dtype),
    )
    assert engine.facts.vocab_size == VOCAB_SIZE
    crowd = Crowd(engine, seed=3)
    crowd.run(400)
    crowd.check()
