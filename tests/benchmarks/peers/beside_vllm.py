"""Output tokens a second of our synchronous engine, in float32 and in int8, beside vLLM's CPU build in float32.

    python tests/benchmarks/peers/beside_vllm.py VLLM_PYTHON --shape gpt_neox_70m --num-prompts 128 256 --output-json FILE

Ours runs before vLLM and again after it, so that a machine that changes meanwhile shows. VLLM_PYTHON is the interpreter
of an environment that has vLLM; it needs `VLLM_CPU_KVCACHE_SPACE` (GiB) in its environment where memory is short.
One JSON line for each number of prompts is appended to FILE.
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
PYTHIA = "EleutherAI/pythia-70m-deduped"

Rates = dict[str, list[float]]  # output tokens/s, by quantisation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("vllm_python", type=Path)
    parser.add_argument("--shape", choices=[path.stem for path in HERE.glob("shapes/*.json")], required=True)
    parser.add_argument("--model", default=PYTHIA, help=f"a file of that shape; default {PYTHIA} with random weights")
    parser.add_argument("--num-prompts", type=int, nargs="+", default=[128])
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=1, help="rounds of each, before and after for ours")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-json", type=Path)
    options = parser.parse_args()

    ours: dict[int, Rates] = {number: {name: [] for name in QUANTIZATIONS} for number in options.num_prompts}
    run_ours(options, ours)
    peer = run_vllm(options)
    run_ours(options, ours)
    for number, rates in ours.items():
        theirs = peer["output_tokens_per_second"][str(number)]
        ratios = {name: round(median(rates[name]) / median(theirs), 3) for name in QUANTIZATIONS}
        print(f"{number} prompts: ours {rates}, vLLM {theirs}, ratios {ratios}", flush=True)
        if options.output_json:
            figures: dict[str, Any] = {
                "shape": options.shape,
                "num_prompts": number,
                "input_len": 128,
                "output_len": options.output_len,
                "output_tokens_per_second": {**rates, "vllm": theirs},
                "ratios_to_vllm": ratios,
                "vllm_version": peer["version"],
                "vllm_start_s": peer["start_s"],
            }
            line = report("beside_vllm", figures, seed=options.seed)
            line["command"] = shlex.join(["python", "tests/benchmarks/peers/beside_vllm.py", "VLLM_PYTHON", *sys.argv[2:]])
            append_json_line(options.output_json, line)


def run_ours(options: argparse.Namespace, rates: dict[int, Rates]) -> None:
    for number in options.num_prompts:
        for name in QUANTIZATIONS:
            for _ in range(options.repeat):
                workload = Workload(
                    model=options.model,
                    num_prompts=number,
                    input_len=128,
                    output_len=options.output_len,
                    load_format="dummy" if options.model == PYTHIA else "auto",
                    quantization=name,
                    seed=options.seed,
                )
                elapsed_s = measure(Mode.SYNC, workload).elapsed_s
                rates[number][name].append(round(number * options.output_len / elapsed_s, 1))


def run_vllm(options: argparse.Namespace) -> dict[str, Any]:
    command = [options.vllm_python, HERE / "vllm_offline.py", HERE / "shapes" / f"{options.shape}.json"]
    command += ["--output-len", str(options.output_len), "--repeat", str(options.repeat), "--seed", str(options.seed)]
    command += ["--num-prompts", *map(str, options.num_prompts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    answer = next(line for line in reversed(done.stdout.splitlines()) if line.startswith(b"{"))
    decoded: dict[str, Any] = msgspec.json.decode(answer)
    return decoded


if __name__ == "__main__":
    main()
