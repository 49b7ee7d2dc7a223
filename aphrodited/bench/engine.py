"""How many tokens a second the synchronous engine makes: the ceiling for everything around it.

All requests are added at once, random prompts of one length, temperature 1, `ignore_eos`; text plays no part.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from aphrodited.bench.report import append_json_line, report
from aphrodited.config.schema import EngineConfig, ModelConfig
from aphrodited.engine.factory import create_backend
from aphrodited.interfaces import EngineBackend
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import SamplingParams


def requests(options: argparse.Namespace, vocab_size: int) -> list[GenerateRequest]:
    rng = random.Random(options.seed)
    params = SamplingParams(temperature=1.0, max_tokens=options.output_len, ignore_eos=True)
    return [
        GenerateRequest(
            f"bench-{i}",
            [rng.randrange(vocab_size) for _ in range(options.input_len)],
            msgspec.structs.replace(params, seed=options.seed * 1_000_003 + i),
        )
        for i in range(options.num_prompts)
    ]


def run(backend: EngineBackend, batch: list[GenerateRequest]) -> dict[str, Any]:
    """Run the batch to its end; every request must end by its length."""
    start_s = time.perf_counter()
    for key, request in enumerate(batch):
        backend.add_request(key, request)
    num_tokens = num_finished = num_steps = 0
    while backend.has_unfinished_requests():
        num_steps += 1
        for output in backend.step():
            num_tokens += len(output.token_ids)
            num_finished += output.finish_reason is not None
    elapsed_s = time.perf_counter() - start_s
    expected = sum(request.sampling_params.max_tokens or 0 for request in batch)
    if num_finished != len(batch) or num_tokens != expected:
        raise SystemExit(f"{num_finished} of {len(batch)} requests ended, with {num_tokens} of {expected} tokens")
    return {
        "elapsed_s": round(elapsed_s, 3),
        "requests_per_second": round(len(batch) / elapsed_s, 2),
        "output_tokens_per_second": round(num_tokens / elapsed_s, 1),
        "num_steps": num_steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="EleutherAI/pythia-70m-deduped")
    parser.add_argument("--load-format", default="dummy", choices=("auto", "safetensors", "gguf", "dummy"))
    parser.add_argument("--num-prompts", type=int, default=128)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-json", type=Path, help="append each result to this file of JSON lines")
    options = parser.parse_args()
    model = ModelConfig(
        name="bench",
        path=options.model,
        load_format=options.load_format,
        max_model_len=options.input_len + options.output_len,
        engine=EngineConfig(max_num_waiting=options.num_prompts, enable_prefix_caching=False),
    )
    with tempfile.TemporaryDirectory() as cache_dir:
        backend = create_backend(model, Path(cache_dir), lambda fraction, what: None)
        for _ in range(options.repeat):
            shape = {key: getattr(options, key) for key in ("model", "num_prompts", "input_len", "output_len")}
            figures = run(backend, requests(options, backend.facts.vocab_size))
            line = report("engine", {**shape, **figures}, seed=options.seed)
            print(json.dumps(line))
            if options.output_json:
                append_json_line(options.output_json, line)
        backend.close()


if __name__ == "__main__":
    main()
