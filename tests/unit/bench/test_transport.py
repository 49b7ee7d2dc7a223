"""Tests of aphrodited.bench.transport and aphrodited.bench.silent_engine. The figures themselves are not judged."""

from __future__ import annotations

from aphrodited.bench.silent_engine import SilentBackend
from aphrodited.outputs import FinishReason
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import SamplingParams


def test_each_request_gets_one_token_a_step_and_ends() -> None:
    backend = SilentBackend()
    for key, max_tokens in ((1, 1), (2, 3), (3, 9)):
        backend.add_request(key, GenerateRequest("r", [1], SamplingParams(max_tokens=max_tokens)))
    assert backend.abort_request(3)
    assert not backend.abort_request(3)
    steps = [[(output.key, output.finish_reason) for output in backend.step()] for _ in range(3)]
    assert steps == [[(1, FinishReason.LENGTH), (2, None)], [(2, None)], [(2, FinishReason.LENGTH)]]
    assert not backend.has_unfinished_requests()
