"""One stream of our synchronous engine, in float32 and in int8, beside llama.cpp on the same .gguf file.

    python tests/benchmarks/peers/beside_llama_cpp.py LLAMA_PYTHON FILE.gguf --output-json FILE

LLAMA_PYTHON is the interpreter of an environment that has llama-cpp-python. Each side is a process of its own, which rests while
another computes. A round is a prompt and what is decoded behind it by each of them in turn, within seconds, so that a machine that
changes meanwhile changes for all; a first one warms up. A ratio is the median over the rounds. One JSON line is appended to FILE.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Self

import msgspec

from aphrodited.bench.report import append_json_line, report

HERE = Path(__file__).parent
QUANTIZATIONS = ("none", "int8")
INPUT_LEN, OUTPUT_LEN = 512, 128

Rates = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("llama_python", type=Path)
    parser.add_argument("model")
    parser.add_argument("--repeat", type=int, default=9, help="rounds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-json", type=Path)
    options = parser.parse_args()

    rounds: list[dict[str, Rates]] = []
    with ExitStack() as stack:
        sides = {"llama.cpp": stack.enter_context(Side(options.llama_python, "llama_cpp_offline.py", options))}
        for name in QUANTIZATIONS:
            sides[name] = stack.enter_context(Side(sys.executable, "aphrodite_offline.py", options, "--quantization", name))
        for number in range(1 + options.repeat):
            rates = {name: side.run() for name, side in sides.items()}
            if number:
                rounds.append(rates)
                print(rates, flush=True)
        version = sides["llama.cpp"].version
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


class Side:
    """A process of a script beside this one, for the length of a block."""

    def __init__(self, python: Path | str, script: str, options: argparse.Namespace, *more: str) -> None:
        self._command = [python, HERE / script, options.model, "--seed", str(options.seed), *more]
        self._command += ["--input-len", str(INPUT_LEN), "--output-len", str(OUTPUT_LEN)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.version: str = self._read()["version"]
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()  # it ends with its input

    def run(self) -> Rates:
        """One prompt and what is decoded behind it, tokens a second."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = msgspec.json.decode(self._process.stdout.readline())
        return answer


if __name__ == "__main__":
    main()
