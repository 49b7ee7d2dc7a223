"""The ways from engine to client alone: tokens a second, processor time a token of each hop, requests a minute.

The engine's backend does nothing, see bench.silent_engine. The client is read as a program would read it, request by
request, on the event loop that API workers use. The hop over HTTP is an API worker of a real daemon, at a pace that it
can keep, so that each token is an event of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from aphrodited.bench.http import run_http
from aphrodited.bench.report import append_json_line, cpu_seconds, report
from aphrodited.bench.silent_engine import MODEL_FOLDER, MQ
from aphrodited.bench.workload import PACED_VOCAB_SIZE, Workload
from aphrodited.mq.client import MQAphroditeEngineClient, MqClientConfig
from aphrodited.sampling_params import SamplingParams

ATTACH_TIMEOUT_S = 30.0
PROMPT = [1, 2, 3, 4]
HTTP_PACE_MS = 50.0
HTTP_OUTPUT_LEN = 50


@contextmanager
def silent_engine() -> Iterator[tuple[Path, int]]:
    """The model's folder, and the engine's pid."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        engine = subprocess.Popen([sys.executable, "-P", "-m", "aphrodited.bench.silent_engine", folder])
        try:
            yield Path(folder, MODEL_FOLDER), engine.pid
        finally:
            engine.terminate()
            engine.wait()


async def run_batch(client: MQAphroditeEngineClient, num_requests: int, output_len: int) -> float:
    """Seconds until so many requests, all sent at once, have got all their tokens."""
    params = SamplingParams(max_tokens=output_len, detokenize=False)

    async def generate(number: int) -> int:
        num_tokens = 0
        async for output in client.generate(PROMPT, params, f"bench-{number}"):
            num_tokens += len(output.outputs[0].new_token_ids)
        return num_tokens

    began_at_s = time.perf_counter()
    counts = await asyncio.gather(*map(generate, range(num_requests)))
    elapsed_s = time.perf_counter() - began_at_s
    if counts != [output_len] * num_requests:
        raise SystemExit(f"{sum(counts)} tokens came, {num_requests * output_len} were asked for")
    return elapsed_s


async def measure(folder: Path, engine_pid: int, options: argparse.Namespace) -> dict[str, Any]:
    with closing(MQAphroditeEngineClient(folder, MqClientConfig(mq=MQ))) as client:
        if not await client.wait_until_running(ATTACH_TIMEOUT_S):
            raise SystemExit("the engine does not answer")
        await run_batch(client, options.num_seqs, 10)
        gc.collect()
        gc.freeze()  # as an API worker does before it serves
        num_tokens = options.num_seqs * options.output_len
        rates, client_us, engine_us = [], [], []
        for _ in range(options.repeat):
            client_cpu_s, engine_cpu_s = time.process_time(), cpu_seconds(engine_pid)
            rates.append(num_tokens / await run_batch(client, options.num_seqs, options.output_len))
            client_us.append(1e6 * (time.process_time() - client_cpu_s) / num_tokens)
            engine_us.append(1e6 * (cpu_seconds(engine_pid) - engine_cpu_s) / num_tokens)
        requests_s = [await run_batch(client, options.num_requests, 1) for _ in range(options.repeat)]
    return {
        "num_seqs": options.num_seqs,
        "output_len": options.output_len,
        "tokens_per_second": round(median(rates)),
        "best_tokens_per_second": round(max(rates)),
        "client_cpu_us_per_token": round(median(client_us), 2),
        "engine_cpu_us_per_token": round(median(engine_us), 2),
        "requests_per_minute": round(60 * options.num_requests / median(requests_s)),
    }


def measure_http(num_seqs: int) -> dict[str, Any]:
    """What a token costs an API worker, its own client of the engine included, and the client on the other side."""
    workload = Workload("paced", num_seqs, len(PROMPT), HTTP_OUTPUT_LEN, pace_ms=HTTP_PACE_MS)
    figures = run_http(workload, num_workers=1, vocab_size=PACED_VOCAB_SIZE)
    return {
        "http_worker_cpu_us_per_token": figures["cpu_us_per_token"]["api"],
        "http_client_cpu_us_per_token": figures["cpu_us_per_token"]["client"],
        "http_tokens_per_event": figures["tokens_per_event"],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-seqs", type=int, default=256)
    parser.add_argument("--output-len", type=int, default=2000)
    parser.add_argument("--num-requests", type=int, default=10_000, help="of one token each, for requests a minute")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--output-json", type=Path, help="append the result to this file of JSON lines")
    options = parser.parse_args(arguments)
    with silent_engine() as (folder, engine_pid), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(measure(folder, engine_pid, options))
    figures |= measure_http(options.num_seqs)
    line = report("transport", figures)
    for name, value in figures.items():
        print(f"{name:30} {value}")
    if options.output_json:
        append_json_line(options.output_json, line)


if __name__ == "__main__":
    main()
