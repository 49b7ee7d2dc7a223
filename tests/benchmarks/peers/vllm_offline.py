"""Output tokens a second of vLLM's offline engine, for comparison. Runs under vLLM's own interpreter, not ours.

    VLLM_PYTHON tests/benchmarks/peers/vllm_offline.py CONFIG_JSON [--num-prompts N ...]

Weights are random ones of the shape in CONFIG_JSON (a model's config.json), prompts are random token ids, every
request runs to its full length; nothing is tokenised or detokenised. Prints one JSON object.
"""

import argparse
import json
import random
import shutil
import tempfile
import time
from pathlib import Path

from vllm import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--num-prompts", type=int, default=128)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(options.config, Path(folder) / "config.json")
        started_at_s = time.perf_counter()
        llm = LLM(
            folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=options.input_len + options.output_len,
            max_num_seqs=256,
            enable_prefix_caching=False,
            seed=options.seed,
        )
        start_s = time.perf_counter() - started_at_s
    vocab_size = json.loads(options.config.read_text())["vocab_size"]
    rng = random.Random(options.seed)
    prompts = [
        {"prompt_token_ids": [rng.randrange(vocab_size) for _ in range(options.input_len)]}
        for _ in range(options.num_prompts)
    ]
    params = SamplingParams(temperature=1.0, max_tokens=options.output_len, ignore_eos=True, detokenize=False)
    rates = []
    for _ in range(options.repeat):
        began_at_s = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        elapsed_s = time.perf_counter() - began_at_s
        num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        assert num_tokens == options.num_prompts * options.output_len
        rates.append(round(num_tokens / elapsed_s, 1))
    print(json.dumps({"start_s": round(start_s, 1), "output_tokens_per_second": rates}))


if __name__ == "__main__":
    main()
