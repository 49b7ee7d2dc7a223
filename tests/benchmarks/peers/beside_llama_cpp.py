"""One stream of our synchronous engine, in float32 and in int8, beside llama.cpp on the same .gguf file.

    python tests/benchmarks/peers/beside_llama_cpp.py LLAMA_PYTHON FILE.gguf --output-json FILE

LLAMA_PYTHON is the interpreter of an environment that has llama-cpp-python. Each round runs all three, each in a process of
its own that reads a prompt and decodes behind it, once to warm up and three times for a median; a ratio is the median over
the rounds. One JSON line is appended to FILE.
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

from aphrodited.bench.report import append_json_line, report

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
        peer = run(options.llama_python, "llama_cpp_offline.py", options)
        version = peer["version"]
        ours = {name: run(sys.executable, "aphrodite_offline.py", options, "--quantization", name) for name in QUANTIZATIONS}
        rounds.append({"llama.cpp": medians(peer["tokens_per_second"]), **{name: medians(each) for name, each in ours.items()}})
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


def medians(rates: dict[str, list[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in rates.items()}


def run(python: Path | str, script: str, options: argparse.Namespace, *more: str) -> dict[str, Any]:
    """What a script beside this one prints."""
    command = [python, HERE / script, options.model, "--seed", str(options.seed), *more]
    command += ["--input-len", str(INPUT_LEN), "--output-len", str(OUTPUT_LEN)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    answer: dict[str, Any] = msgspec.json.decode(done.stdout)
    return answer


if __name__ == "__main__":
    main()
