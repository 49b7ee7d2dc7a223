"""Streaming over HTTP, by a real daemon: requests and tokens a second, times to first and between tokens, ratio to sync.

Each round measures the synchronous engine and the daemon, one after the other, with the same requests, all sent at once.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import uvloop

from aphrodited.bench.daemon import DaemonUnderTest
from aphrodited.bench.http_client import StreamTimes, stream_completion
from aphrodited.bench.modes import Mode, measure
from aphrodited.bench.report import append_json_line, report
from aphrodited.bench.workload import Workload, add_workload_options, workload_of

HOST = "127.0.0.1"
PERCENTILES = (50, 90, 99)


@contextmanager
def daemon_for(workload: Workload, num_workers: int) -> Iterator[DaemonUnderTest]:
    with workload.model_config() as model, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        model = msgspec.structs.replace(model, standby=0)  # it would load while something is measured
        path = Path(model.path)
        if path.exists():
            model = msgspec.structs.replace(model, path=str(path.resolve()))
        config = {
            "models": [model],
            "api": {"host": HOST, "port": _free_port(), "workers": num_workers},
            "monitor": {"host": HOST, "port": _free_port()},
            "paths": {"runtime_dir": f"{folder}/run", "state_dir": f"{folder}/state"},
        }
        config_file = Path(folder, "config.yaml")
        config_file.write_bytes(msgspec.json.encode(config))  # JSON is YAML
        daemon = DaemonUnderTest(config_file)
        try:
            yield daemon
        finally:
            daemon.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


async def stream_all(daemon: DaemonUnderTest, workload: Workload, vocab_size: int) -> tuple[float, list[StreamTimes]]:
    """Seconds until every stream has ended, and the streams."""
    bodies = [
        {
            "model": daemon.config.models[0].name,
            "prompt": prompt,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "seed": params.seed,
            "ignore_eos": True,
        }
        for prompt, params in workload.prompts(vocab_size)
    ]
    began_at_s = time.perf_counter()
    streams = await asyncio.gather(*(stream_completion(HOST, daemon.config.api.port, body) for body in bodies))
    elapsed_s = time.perf_counter() - began_at_s
    num_tokens = sum(stream.num_tokens for stream in streams)
    if num_tokens != workload.num_prompts * workload.output_len:
        raise SystemExit(f"{num_tokens} tokens came, {workload.num_prompts * workload.output_len} were asked for")
    return elapsed_s, streams


def run_http(workload: Workload, num_workers: int, vocab_size: int) -> dict[str, Any]:
    """Figures of one round."""
    with daemon_for(workload, num_workers) as daemon, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(stream_all(daemon, msgspec.structs.replace(workload, num_prompts=4, output_len=2), vocab_size))
        before = daemon.cpu_s()
        elapsed_s, streams = runner.run(stream_all(daemon, workload, vocab_size))
        cpu_s = {name: used - before[name] for name, used in daemon.cpu_s().items()}
    num_events = sum(len(stream.event_times_s) for stream in streams)
    workers_cpu_s = sum(used for name, used in cpu_s.items() if name.startswith("api"))
    return {
        "elapsed_s": elapsed_s,
        "events_per_worker_core_second": num_events / workers_cpu_s if workers_cpu_s else None,
        "cpu_s": cpu_s,
        **latencies(streams),
    }


def latencies(streams: list[StreamTimes]) -> dict[str, dict[str, float]]:
    """Milliseconds by percentile: from a request to its first event, and from each event to the next."""
    first = [stream.event_times_s[0] for stream in streams if stream.event_times_s]
    gaps = [
        later - earlier
        for stream in streams
        for earlier, later in zip(stream.event_times_s, stream.event_times_s[1:], strict=False)
    ]
    return {"time_to_first_token_ms": percentiles(first), "inter_token_ms": percentiles(gaps)}


def percentiles(values_s: list[float]) -> dict[str, float]:
    """The smallest value that so many percent do not exceed, in milliseconds."""
    ordered = sorted(values_s)
    return {f"p{p}": round(1000 * ordered[max(0, -(-len(ordered) * p // 100) - 1)], 3) for p in PERCENTILES if ordered}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_workload_options(parser, model="var/models/SmolLM2-135M-Instruct.Q4_1.gguf", num_prompts=64)
    parser.add_argument("--workers", type=int, default=2, help="API worker processes")
    parser.add_argument("--vocab-size", type=int, default=10_000, help="prompts are made of token ids below this")
    parser.add_argument("--output-json", type=Path, help="append the result to this file of JSON lines")
    options = parser.parse_args(arguments)
    workload = workload_of(options)
    rounds, ratios = [], []
    for _ in range(options.repeat):
        sync_s = measure(Mode.SYNC, workload).elapsed_s
        rounds.append(run_http(workload, options.workers, options.vocab_size))
        ratios.append(sync_s / rounds[-1]["elapsed_s"])
        for name, elapsed_s in (("sync", sync_s), ("http", rounds[-1]["elapsed_s"])):
            print(f"{name}  {workload.num_prompts / elapsed_s:.2f} requests/s, {workload.num_tokens / elapsed_s:.2f} tokens/s")
    elapsed_s = median(figures["elapsed_s"] for figures in rounds)
    figures = {
        "requests_per_second": workload.num_prompts / elapsed_s,
        "tokens_per_second": workload.num_tokens / elapsed_s,
        "ratios": {"http/sync": median(ratios)},
        "workload": msgspec.to_builtins(workload),
        "rounds": rounds,
    }
    last = rounds[-1]
    print(f"http/sync  {figures['ratios']['http/sync']:.3f} (median of {len(rounds)})")
    print(f"time to first token, ms  {last['time_to_first_token_ms']}")
    print(f"between tokens, ms       {last['inter_token_ms']}")
    print(f"events per core-second of API workers  {last['events_per_worker_core_second'] or 0:.0f}")
    if options.output_json:
        append_json_line(options.output_json, report("http", figures, seed=options.seed))


if __name__ == "__main__":
    main()
