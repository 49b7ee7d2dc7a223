"""Tests of aphrodited.bench.transport and aphrodited.bench.silent_engine. The figures themselves are not judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aphrodited.bench.silent_engine import SilentBackend
from aphrodited.bench.transport import main
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


def test_the_transport_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.jsonl"
    main(["--num-seqs=4", "--output-len=20", "--num-requests=50", "--repeat=2", f"--output-json={path}"])
    (line,) = map(json.loads, path.read_text().splitlines())
    assert line["benchmark"] == "transport"
    assert line["tokens_per_second"] > 0
    assert line["requests_per_minute"] > 0
    assert "client_cpu_us_per_token" in capsys.readouterr().out
