"""Checks the engine on a GPU against the one on the CPU, then times it, in under 5 minutes: scripts/check-gpu.

    numbers    greedy tokens and their log-probabilities, in float32 and in bfloat16, against float32 on the CPU. Where
               the tokens part, the CPU must have found the GPU's token as likely as its own, up to a tolerance
    batches    the same requests one by one against all at once
    speed      tokens per second: GPT-NeoX of 70M parameters, and SmolLM2-135M decoding and reading prompts
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from aphrodited.config.schema import EngineConfig, ModelConfig
from aphrodited.engine.device import resolve_device
from aphrodited.engine.factory import create_backend
from aphrodited.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from aphrodited.interfaces import EngineBackend
from aphrodited.llm import default_cache_dir
from aphrodited.outputs import TokenLogprobs
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import MAX_LOGPROBS, SamplingParams

NEOX = "EleutherAI/pythia-70m-deduped"
SMOLLM2 = "var/models/SmolLM2-135M-Instruct.Q4_1.gguf"
EXIT_DIFFERENT = 1

TOLERANCE = {"float32": 0.01, "bfloat16": 0.5}  # of a log-probability; bfloat16 keeps 8 bits of each number
BATCH_TOLERANCE = TOLERANCE["bfloat16"]

Dtype = Literal["float32", "bfloat16"]
Answer = list[TokenLogprobs]


class Comparison(NamedTuple):
    """worst: largest difference of two log-probabilities that ought to be equal.  num_parted: answers that parted."""

    worst: float
    num_parted: int


def compare(reference: list[Answer], answers: list[Answer]) -> Comparison:
    """Token by token, up to where an answer parts from the reference, and how much the reference minds it there."""
    worst, num_parted = 0.0, 0
    for theirs, ours in zip(reference, answers, strict=True):
        for expected, found in zip(theirs, ours, strict=True):
            if found.token_id == expected.token_id:
                worst = max(worst, abs(found.logprob - expected.logprob))
                continue
            alternatives = dict(zip(expected.top_token_ids, expected.top_logprobs, strict=True))
            worst = max(worst, expected.logprob - alternatives.get(found.token_id, -float("inf")))
            num_parted += 1
            break
    return Comparison(worst, num_parted)


@contextmanager
def engine(path: str, device: str, dtype: Dtype) -> Iterator[EngineBackend]:
    config = ModelConfig(
        name="gpu-check",
        path=path,
        load_format="dummy" if path == NEOX else "auto",
        device=device,
        dtype=dtype,
        max_model_len=2048,
        engine=EngineConfig(max_num_batched_tokens=8192, enable_prefix_caching=False),
    )
    with closing(create_backend(config, default_cache_dir(), lambda progress, what: None)) as backend:
        yield backend


def prompts_of(num_prompts: int, length: int, vocab_size: int) -> list[list[int]]:
    chooser = random.Random(1)
    return [[chooser.randrange(vocab_size) for _ in range(length)] for _ in range(num_prompts)]


def run(backend: EngineBackend, prompts: list[list[int]], params: SamplingParams) -> list[Answer]:
    """All prompts at once, to their ends; answers stay empty unless params ask for log-probabilities."""
    answers: list[Answer] = [[] for _ in prompts]
    for key, prompt in enumerate(prompts):
        backend.add_request(key, GenerateRequest(str(key), prompt, params))
    while backend.has_unfinished_requests():
        for output in backend.step():
            if output.error is not None:
                raise RuntimeError(f"request {output.key} failed: {output.error}")
            answers[output.key] += output.logprobs or []
    return answers


def check(path: str, device: str, say: Callable[[str], None]) -> bool:
    """Whether numbers and batches of one model are as they should be."""
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True, logprobs=MAX_LOGPROBS)
    is_right = True

    def judge(what: str, comparison: Comparison, tolerance: float) -> None:
        nonlocal is_right
        is_good = comparison.worst <= tolerance
        is_right = is_right and is_good
        verdict = "ok" if is_good else "WRONG"
        say(f"{verdict:6}{path}: {what}: {comparison.worst:.4f} apart, {comparison.num_parted} answers part (at most {tolerance})")

    with engine(path, "cpu", "float32") as backend:
        prompts = [p[: 20 + 60 * i] for i, p in enumerate(prompts_of(6, 400, backend.facts.vocab_size))]
        reference = run(backend, prompts, params)
    for dtype in ("float32", "bfloat16"):
        with engine(path, device, dtype) as backend:
            together = run(backend, prompts, params)
            alone = [run(backend, [prompt], params)[0] for prompt in prompts]
        judge(f"{dtype} on {device} against the CPU", compare(reference, together), TOLERANCE[dtype])
        judge(f"{dtype}, each alone against all at once", compare(alone, together), BATCH_TOLERANCE)
    return is_right


def measure(path: str, device: str, say: Callable[[str], None]) -> None:
    """Time some workloads, each after a run that compiles what it needs."""
    with engine(path, device, "bfloat16") as backend:
        for num_prompts, input_len, output_len in ((1, 128, 128), (64, 128, 64), (128, 128, 128), (16, 2000, 1)):
            prompts = prompts_of(num_prompts, input_len, backend.facts.vocab_size)
            params = SamplingParams(temperature=1.0, seed=1, max_tokens=output_len, ignore_eos=True)
            run(backend, prompts, params)
            start = time.perf_counter()
            run(backend, prompts, params)
            elapsed_s = time.perf_counter() - start
            say(
                f"      {path}: {num_prompts} x ({input_len} + {output_len}): {num_prompts * output_len / elapsed_s:,.0f} output"
                f" tokens/s, {num_prompts * (input_len + output_len) / elapsed_s:,.0f} with prompts"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check and time the engine on a GPU.")
    parser.add_argument("--device", default="cuda:0", help="which GPU (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        resolve_device(ModelConfig(name="gpu-check", path=NEOX, device=options.device))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_CONFIG
    paths = [NEOX, SMOLLM2] if Path(SMOLLM2).exists() else [NEOX]

    def say(line: str) -> None:
        print(line, flush=True)

    verdicts = [check(path, options.device, say) for path in paths]
    for path in paths:
        measure(path, options.device, say)
    if len(paths) == 1:
        say(f"{SMOLLM2} is not there, so only random weights were checked; scripts/fetch-demo-model brings it")
    return EXIT_OK if all(verdicts) else EXIT_DIFFERENT


if __name__ == "__main__":
    sys.exit(main())
