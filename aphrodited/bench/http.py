"""Streaming over HTTP, by a real daemon: requests and tokens a second, times to first and between tokens, ratio to sync.

Each round measures the synchronous engine and the daemon, one after the other, with the same requests, all sent at once.
The synchronous engine makes token ids only; the daemon also makes text and JSON of them, and its client, this process,
counts events. Where other work takes the processors, compare processor times: those of engine and sync are the same work.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import uvloop

from aphrodited.bench.daemon import DaemonUnderTest, free_port
from aphrodited.bench.http_client import StreamTimes, stream_completion
from aphrodited.bench.modes import Mode, measure, rest
from aphrodited.bench.report import append_json_line, report
from aphrodited.bench.workload import Workload, add_workload_options, workload_of

HOST = "127.0.0.1"
PERCENTILES = (50, 90, 99)
CLIENT_IS_BUSY = 0.9
"""Share of a core above which this process is what everything waits for."""


@contextmanager
def daemon_for(workload: Workload, num_workers: int) -> Iterator[DaemonUnderTest]:
    with workload.model_config() as model, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        model = msgspec.structs.replace(model, standby=0)  # it would load while something is measured
        path = Path(model.path)
        if path.exists():
            model = msgspec.structs.replace(model, path=str(path.resolve()))
        config = {
            "models": [model],
            "api": {"host": HOST, "port": free_port(HOST), "workers": num_workers},
            "monitor": {"host": HOST, "port": free_port(HOST)},
            "paths": {"runtime_dir": f"{folder}/run", "state_dir": f"{folder}/state"},
        }
        config_file = Path(folder, "config.yaml")
        config_file.write_bytes(msgspec.json.encode(config))  # JSON is YAML
        daemon = DaemonUnderTest(config_file)
        try:
            yield daemon
        finally:
            daemon.stop()


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
    """Figures of one round; see `costs` and `latencies`."""
    with daemon_for(workload, num_workers) as daemon, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        # Other prompts, or their blocks would be cached.
        warm_up = msgspec.structs.replace(workload, num_prompts=4, output_len=2, seed=workload.seed + 1)
        runner.run(stream_all(daemon, warm_up, vocab_size))
        rest(workload)
        before, client_before_s = daemon.cpu_s(), time.process_time()
        elapsed_s, streams = runner.run(stream_all(daemon, workload, vocab_size))
        client_cpu_s = time.process_time() - client_before_s
        cpu_s = {name: used - before[name] for name, used in daemon.cpu_s().items()}
    return {
        "elapsed_s": elapsed_s,
        "requests_per_second": workload.num_prompts / elapsed_s,
        "tokens_per_second": workload.num_tokens / elapsed_s,
        **costs(elapsed_s, streams, {**cpu_s, "client": client_cpu_s}),
        **latencies(streams),
    }


def costs(elapsed_s: float, streams: list[StreamTimes], cpu_s: dict[str, float]) -> dict[str, Any]:
    """What was sent and what it cost.  cpu_s: by process, this one being `client`.

    An event holds whatever of an answer was ready together, so under load it is more than a token. Only events with
    something of the answer count.
    client_share_of_core: near 1 this process was what held everything up, and the figures are its own.
    """
    num_tokens = sum(stream.num_tokens for stream in streams)
    num_events = sum(len(stream.event_times_s) for stream in streams)
    hops_s = {hop: sum(s for name, s in cpu_s.items() if name.startswith(hop)) for hop in ("engine", "api", "client")}
    return {
        "tokens_per_event": round(num_tokens / num_events, 3),
        "cpu_us_per_token": {hop: round(1e6 * used_s / num_tokens, 2) for hop, used_s in hops_s.items()},
        "events_per_worker_core_second": round(num_events / hops_s["api"]) if hops_s["api"] else None,
        "client_share_of_core": round(hops_s["client"] / elapsed_s, 3),
        "cpu_s": cpu_s,
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
    rounds = []
    for _ in range(options.repeat):
        sync = measure(Mode.SYNC, workload)
        figures = run_http(workload, options.workers, options.vocab_size)
        figures |= {"sync_elapsed_s": sync.elapsed_s, "ratios": {"http/sync": sync.elapsed_s / figures["elapsed_s"]}}
        figures["cpu_us_per_token"]["sync"] = 1e6 * sync.cpu_s / (workload.num_prompts * workload.output_len)
        rounds.append(figures)
        for name, elapsed_s in (("sync", sync.elapsed_s), ("http", figures["elapsed_s"])):
            print(f"{name}  {workload.num_prompts / elapsed_s:.2f} requests/s, {workload.num_tokens / elapsed_s:.2f} tokens/s")
    figures = medians(rounds)
    for line in lines(figures):
        print(line)
    if options.output_json:
        figures |= {"workers": options.workers, "workload": msgspec.to_builtins(workload), "rounds": rounds}
        append_json_line(options.output_json, report("http", figures, seed=options.seed))


def medians(rounds: list[Any]) -> Any:
    """The median over the rounds of every figure in them, to a thousandth."""
    if isinstance(rounds[0], dict):
        return {name: medians([figures[name] for figures in rounds]) for name in rounds[0]}
    known = [value for value in rounds if value is not None]
    return round(median(known), 3) if known else None


def lines(figures: dict[str, Any]) -> list[str]:
    """The summary for people."""
    named = {
        "http/sync": f"{figures['ratios']['http/sync']:.3f}",
        "time to first token, ms": figures["time_to_first_token_ms"],
        "between events, ms": figures["inter_token_ms"],
        "tokens per event": figures["tokens_per_event"],
        "processor time per token, µs": figures["cpu_us_per_token"],
        "events per core-second of API workers": figures["events_per_worker_core_second"],
        "of a core used by the client": figures["client_share_of_core"],
    }
    made = [f"{name:38} {value}" for name, value in named.items()]
    if figures["client_share_of_core"] > CLIENT_IS_BUSY:
        made.append("the client itself was the bottleneck: these figures are too low")
    return made


if __name__ == "__main__":
    main()
