"""Requests and tokens a second of the synchronous engine, of AsyncAphrodite and of MQAphroditeEngine.

Every measurement is a process of its own; with --compare all three ways alternate, round by round, and the ratios are
medians over the rounds. Detokenising is off in all of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from aphrodited.bench.modes import Figures, Mode, measure
from aphrodited.bench.report import report
from aphrodited.bench.workload import Workload, add_workload_options, workload_of

Round = dict[Mode, Figures]


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add_workload_options(parser, model="EleutherAI/pythia-70m-deduped")
    parser.add_argument("--async-engine", action="store_true", help="over MQ, the engine in a process of its own")
    parser.add_argument(
        "--disable-frontend-multiprocessing", action="store_true", help="with --async-engine: AsyncAphrodite instead"
    )
    parser.add_argument("--compare", action="store_true", help="all three ways, alternating")
    parser.add_argument(
        "--async-sockets", action=argparse.BooleanOptionalAction, help="mq.async_sockets of the MQ engine, if not as by default"
    )
    parser.add_argument("--output-json", type=Path, help="write the results to this file")
    options = parser.parse_args(arguments)
    if options.disable_frontend_multiprocessing and not options.async_engine:
        parser.error("--disable-frontend-multiprocessing is an option of --async-engine")
    if options.compare and options.async_engine:
        parser.error("--compare runs every way; leave --async-engine out")
    return options


def modes_of(options: argparse.Namespace) -> list[Mode]:
    if options.compare:
        return [Mode.SYNC, Mode.MQ, Mode.ASYNC]
    if not options.async_engine:
        return [Mode.SYNC]
    return [Mode.ASYNC if options.disable_frontend_multiprocessing else Mode.MQ]


def run_rounds(workload: Workload, modes: list[Mode], num_rounds: int) -> list[Round]:
    """Each round runs every mode, beginning with another one than the round before."""
    rounds: list[Round] = []
    for number in range(num_rounds):
        at = number % len(modes)
        rounds.append({})
        for mode in modes[at:] + modes[:at]:
            figures = rounds[-1][mode] = measure(mode, workload)
            print(f"{mode:6}{_rates(workload, figures.elapsed_s)}", flush=True)
    return rounds


def summary(workload: Workload, rounds: list[Round]) -> dict[str, Any]:
    """Rates of the median round of each mode, by mode if there are several; then ratios to sync, too."""
    elapsed_s = {mode: median(figures[mode].elapsed_s for figures in rounds) for mode in rounds[0]}
    requests = {mode: workload.num_prompts / elapsed_s[mode] for mode in elapsed_s}
    tokens = {mode: workload.num_tokens / elapsed_s[mode] for mode in elapsed_s}
    if len(elapsed_s) == 1:
        ((_, requests_per_second),) = requests.items()
        ((_, tokens_per_second),) = tokens.items()
        return {"requests_per_second": requests_per_second, "tokens_per_second": tokens_per_second}
    ratios = {
        f"{mode}/sync": median(figures[Mode.SYNC].elapsed_s / figures[mode].elapsed_s for figures in rounds)
        for mode in (Mode.MQ, Mode.ASYNC)
    }
    return {"requests_per_second": requests, "tokens_per_second": tokens, "ratios": ratios}


def _rates(workload: Workload, elapsed_s: float) -> str:
    return f"Throughput: {workload.num_prompts / elapsed_s:.2f} requests/s, {workload.num_tokens / elapsed_s:.2f} tokens/s"


def main(arguments: list[str] | None = None) -> None:
    options = parse_options(arguments)
    workload = workload_of(options)
    rounds = run_rounds(workload, modes_of(options), options.repeat)
    figures = summary(workload, rounds)
    for name, ratio in figures.get("ratios", {}).items():
        print(f"{name:10} {ratio:.3f} (median of {len(rounds)})")
    if options.output_json:
        shape = msgspec.to_builtins(workload)
        line = report("throughput", {**figures, "workload": shape, "rounds": rounds}, seed=options.seed)
        options.output_json.write_bytes(msgspec.json.format(msgspec.json.encode(line), indent=2) + b"\n")


if __name__ == "__main__":
    main()
