"""Tokens a second of our synchronous engine on one stream, measured as `llama_cpp_offline.py` measures its own.

    tests/benchmarks/peers/aphrodite_offline.py FILE.gguf [--quantization int8] [--input-len N] [--output-len N] …

Prints its version when it is ready. Then, for each line of its input, it reads a prompt of random token ids, decodes greedily, with
the defaults of an engine process, and prints tokens a second: each line it prints is one JSON object.
"""

import argparse
import gc
import json
import os
import random
import sys
import time
from contextlib import closing

import aphrodited
from aphrodited.bench.modes import REST_S
from aphrodited.bench.workload import Workload
from aphrodited.engine.environment import engine_environment
from aphrodited.engine.factory import create_backend
from aphrodited.interfaces import EngineBackend
from aphrodited.llm import default_cache_dir
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--quantization", default="none", choices=("none", "int8"))
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    sizes = {"num_prompts": 1, "input_len": options.input_len, "output_len": 1 + options.output_len}
    with Workload(options.model, quantization=options.quantization, **sizes).model_config() as config:
        become_an_engine_process(engine_environment(config))
        backend = create_backend(config, default_cache_dir(), lambda progress, what: None)
    rng = random.Random(options.seed)
    with closing(backend):
        gc.collect()
        gc.freeze()
        time.sleep(REST_S)
        print(json.dumps({"version": aphrodited.__version__}), flush=True)
        for number, _ in enumerate(sys.stdin):
            prompt = [rng.randrange(backend.facts.vocab_size) for _ in range(options.input_len)]
            params = SamplingParams(temperature=0.0, max_tokens=1 + options.output_len, ignore_eos=True, detokenize=False)
            backend.add_request(number, GenerateRequest(f"bench-{number}", prompt, params))
            prefill = options.input_len / seconds_of_tokens(backend, 1)
            decode = options.output_len / seconds_of_tokens(backend, options.output_len)
            print(json.dumps({"prefill": round(prefill, 1), "decode": round(decode, 1)}), flush=True)


def become_an_engine_process(environment: dict[str, str]) -> None:
    """Begin again with an engine's environment, which OpenMP and malloc read when a process starts."""
    if any(os.environ.get(name) != value for name, value in environment.items()):
        os.execve(sys.executable, [sys.executable, "-P", *sys.argv], {**os.environ, **environment})


def seconds_of_tokens(backend: EngineBackend, num_tokens: int) -> float:
    began_at_s = time.perf_counter()
    while num_tokens > 0:
        num_tokens -= sum(len(output.token_ids) for output in backend.step())
    return time.perf_counter() - began_at_s


if __name__ == "__main__":
    main()
