"""One stream of our synchronous engine, in float32 and in int8, beside llama.cpp on the same .gguf file.

    python tests/benchmarks/peers/beside_llama_cpp.py LLAMA_PYTHON FILE.gguf --output-json FILE

LLAMA_PYTHON is the interpreter of an environment that has llama-cpp-python. Each round runs all three, prefill of a
prompt alone and decoding behind it; a ratio is the median over the rounds. One JSON line is appended to FILE.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from aphrodited.bench.modes import Mode, measure
from aphrodited.bench.report import append_json_line, report
from aphrodited.bench.workload import Workload

HERE = Path(__file__).parent
QUANTIZATIONS = ("none", "int8")
INPUT_LEN, OUTPUT_LEN = 512, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("llama_python", type=Path)
    parser.add_argument("model")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-json", type=Path)
    options = parser.parse_args()

    rounds: list[dict[str, dict[str, float]]] = []
    version = ""
    for _ in range(options.repeat):
        peer = run_llama_cpp(options)
        version = peer["version"]
        rates = {name: median(values) for name, values in peer["tokens_per_second"].items()}
        rounds.append({"llama.cpp": rates, **{name: run_ours(options, name) for name in QUANTIZATIONS}})
        print(rounds[-1], flush=True)
    ratios = {
        name: {
            what: round(median(each[name][what] / each["llama.cpp"][what] for each in rounds), 3)
            for what in ("prefill", "decode")
        }
        for name in QUANTIZATIONS
    }
    print(f"ratios to llama.cpp {version}: {ratios}")
    if options.output_json:
        figures = {"input_len": INPUT_LEN, "output_len": OUTPUT_LEN, "rounds": rounds, "ratios_to_llama_cpp": ratios}
        line = report("beside_llama_cpp", {**figures, "llama_cpp_version": version}, seed=options.seed)
        words = ["python", "tests/benchmarks/peers/beside_llama_cpp.py", "LLAMA_PYTHON", *sys.argv[2:]]
        append_json_line(options.output_json, {**line, "command": shlex.join(words)})


def run_ours(options: argparse.Namespace, quantization: str) -> dict[str, float]:
    """Tokens a second. Decoding behind a prompt is what both take, less what the prompt takes."""
    prompt = workload(options, quantization, output_len=1)
    answer = workload(options, quantization, output_len=1 + OUTPUT_LEN)
    prefill_s = measure(Mode.SYNC, prompt).elapsed_s
    decode_s = measure(Mode.SYNC, answer).elapsed_s - prefill_s
    return {"prefill": round(INPUT_LEN / prefill_s, 1), "decode": round(OUTPUT_LEN / decode_s, 1)}


def workload(options: argparse.Namespace, quantization: str, output_len: int) -> Workload:
    values = {"model": options.model, "quantization": quantization, "seed": options.seed}
    sizes = {"num_prompts": 1, "input_len": INPUT_LEN, "output_len": output_len}
    return msgspec.convert({**values, **sizes}, Workload)


def run_llama_cpp(options: argparse.Namespace) -> dict[str, Any]:
    command = [options.llama_python, HERE / "llama_cpp_offline.py", options.model, "--seed", str(options.seed)]
    command += ["--input-len", str(INPUT_LEN), "--output-len", str(OUTPUT_LEN)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    answer: dict[str, Any] = msgspec.json.decode(done.stdout)
    return answer


if __name__ == "__main__":
    main()
