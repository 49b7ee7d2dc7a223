"""Tokens a second of llama.cpp on one stream, for comparison. Runs under the interpreter that has llama-cpp-python.

    LLAMA_PYTHON tests/benchmarks/peers/llama_cpp_offline.py FILE.gguf [--input-len N] [--output-len N] …

Prints its version when it is ready. Then, for each line of its input, it reads a prompt of random token ids, decodes greedily, two
threads, and prints tokens a second: each line it prints is one JSON object.
"""

import argparse
import json
import random
import sys
import time

import llama_cpp
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    llama = llama_cpp.Llama(
        options.model,
        n_ctx=options.input_len + options.output_len,
        n_batch=512,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        verbose=False,
    )
    rng = random.Random(options.seed)
    print(json.dumps({"version": llama_cpp.__version__}), flush=True)
    for _ in sys.stdin:
        prompt = [rng.randrange(llama.n_vocab()) for _ in range(options.input_len)]
        llama.reset()
        prefill = options.input_len / seconds(lambda: llama.eval(prompt))  # noqa: B023
        decode = options.output_len / seconds(lambda: continue_greedily(llama, options.output_len))
        print(json.dumps({"prefill": round(prefill, 1), "decode": round(decode, 1)}), flush=True)


def continue_greedily(llama: llama_cpp.Llama, num_tokens: int) -> None:
    context, vocab_size = llama.ctx, llama.n_vocab()
    for _ in range(num_tokens):
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), shape=(vocab_size,))
        llama.eval([int(logits.argmax())])


def seconds(work) -> float:
    began_at_s = time.perf_counter()
    work()
    return time.perf_counter() - began_at_s


if __name__ == "__main__":
    main()
