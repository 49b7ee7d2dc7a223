"""From kill -9 of an engine to the next token of its streams: with a standby and without, one stream and several.

Each round kills the engine that serves, waits until all is as before, and so on; meanwhile something connects to the
port 50 times a second. Of several streams, each may take the base time and what the tokens before and of its own take
to be computed again, at the rate at which this very run computes prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from aphrodited.bench.daemon import DaemonUnderTest, free_port
from aphrodited.bench.live_stream import LiveStream, open_stream
from aphrodited.bench.pauses import percentiles_s, resumed_after_s
from aphrodited.bench.port_watcher import PortWatcher
from aphrodited.bench.report import append_json_line, report

HOST = "127.0.0.1"
DEMO_MODEL = "var/models/SmolLM2-135M-Instruct.Q4_1.gguf"
PORT_PERIOD_S = 0.02
BASE_S = {0: 6.0, 1: 0.5}
"""Bars for one stream, by the number of standbys."""

BASE_OF_SEVERAL_S = {0: 6.0, 1: 0.4}
MAX_OUT_OF_TURN = 1
"""Whoever reaches the next engine first is computed at once."""

SAME_WRITE_S = 0.005
RATE_TOKENS = 512
VOCAB_SIZE = 10_000


class Bench:
    """A daemon under test and the requests that are asked of it."""

    def __init__(self, daemon: DaemonUnderTest, seed: int) -> None:
        self._daemon = daemon
        self._rng = random.Random(seed)

    async def stream(self, prompt_len: int, num_tokens: int) -> LiveStream:
        return await open_stream(
            HOST,
            self._daemon.config.api.port,
            {
                "model": self._daemon.config.models[0].name,
                "prompt": [self._rng.randrange(VOCAB_SIZE) for _ in range(prompt_len)],
                "max_tokens": num_tokens,
                "temperature": 0,
                "ignore_eos": True,
            },
        )

    async def prefill_rate(self, num_tries: int = 3) -> float:
        """Prompt tokens a second, from the first token of a long prompt."""
        times_s = []
        for _ in range(num_tries):
            began_at_s = time.monotonic()
            stream = await self.stream(RATE_TOKENS, 2)
            await stream.wait()
            times_s.append(stream.times_s[0] - began_at_s)
        return RATE_TOKENS / median(times_s)

    async def kill(self, prompt_lens: list[int], num_before: int, num_after: int) -> list[tuple[int, float]]:
        """Let streams flow, kill their engine; (tokens known at the kill, seconds to the next one) of each stream."""
        victim = await asyncio.to_thread(self._daemon.active_engine)
        streams = [await self.stream(length, num_before + num_after) for length in prompt_lens]
        for stream in streams:
            await stream.wait_for(num_before)
        at_s = time.monotonic()
        known = [length + len(stream.times_s) for length, stream in zip(prompt_lens, streams, strict=True)]
        os.kill(victim, signal.SIGKILL)
        for stream in streams:
            await stream.wait()
        found = [resumed_after_s(at_s, stream.times_s) for stream in streams]
        await asyncio.to_thread(self._daemon.wait_settled)
        if None in found:
            raise SystemExit("a stream had ended before its engine was killed: ask for longer ones")
        return [(num_tokens, time_s) for num_tokens, time_s in zip(known, found, strict=True) if time_s is not None]


async def measure_one(bench: Bench, num_kills: int) -> dict[str, Any]:
    """One stream whose context stays within 128 tokens."""
    times_s = []
    for _ in range(num_kills):
        times_s += [time_s for _, time_s in await bench.kill([48], 30, 50)]
    return {"kills": num_kills, "seconds": [round(time_s, 3) for time_s in times_s], **percentiles_s(times_s)}


async def measure_several(bench: Bench, num_kills: int, num_streams: int) -> dict[str, Any]:
    """Streams with contexts of different lengths.

    beyond_s: what they took on top of computing their tokens again.  out_of_turn: how many went on before a shorter one.
    """
    rate = await bench.prefill_rate()
    rounds: list[dict[str, Any]] = []
    for _ in range(num_kills):
        lengths = [32 + 24 * number for number in range(num_streams)]
        found = sorted(await bench.kill(lengths, 15, 40))
        due_s = [num_tokens / rate for num_tokens in accumulate(num_tokens for num_tokens, _ in found)]
        times_s = [time_s for _, time_s in found]
        rounds.append(
            {
                "known_tokens": [num_tokens for num_tokens, _ in found],
                "seconds": [round(time_s, 3) for time_s in times_s],
                "due_s": [round(time_s, 3) for time_s in due_s],
                "beyond_s": round(max(took - due for took, due in zip(times_s, due_s, strict=True)), 3),
                "out_of_turn": num_out_of_turn(times_s),
            }
        )
    return {
        "streams": num_streams,
        "prefill_tokens_per_s": round(rate, 1),
        "beyond_s": max(figures["beyond_s"] for figures in rounds),
        "out_of_turn": max(figures["out_of_turn"] for figures in rounds),
        "rounds": rounds,
    }


def num_out_of_turn(times_s: list[float]) -> int:
    """Of streams in the order of their lengths, how many went on before a shorter one, beyond the reach of one write."""
    return sum(time_s < max(times_s[:index]) - SAME_WRITE_S for index, time_s in enumerate(times_s) if index)


@contextmanager
def daemon_with(model: str, standby: int) -> Iterator[DaemonUnderTest]:
    """Ready, and with its standby if it has one."""
    path = Path(model)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        entry = {"name": "bench", "path": str(path.resolve()) if path.exists() else model, "standby": standby}
        config = {
            "models": [{**entry, "max_model_len": 1024}],
            "api": {"host": HOST, "port": free_port(HOST), "workers": 2},
            "monitor": {"host": HOST, "port": free_port(HOST)},
            "recovery": {"max_deaths": 10000, "max_strikes": 100},
            "paths": {"runtime_dir": f"{folder}/run", "state_dir": f"{folder}/state"},
        }
        config_file = Path(folder, "config.yaml")
        config_file.write_bytes(msgspec.json.encode(config))  # JSON is YAML
        daemon = DaemonUnderTest(config_file)
        try:
            daemon.wait_settled()
            yield daemon
        finally:
            daemon.stop()


@asynccontextmanager
async def watched(daemon: DaemonUnderTest) -> AsyncIterator[PortWatcher]:
    """Somebody connects to the daemon's port all the time."""
    watcher, end = PortWatcher(HOST, daemon.config.api.port, PORT_PERIOD_S), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watcher.run(end))
        yield watcher
        end.set()


async def measure(model: str, standby: int, num_kills: int, num_streams: int, seed: int) -> dict[str, Any]:
    with daemon_with(model, standby) as daemon:
        bench = Bench(daemon, seed)
        await bench.prefill_rate(1)  # whatever a first request leaves to do
        async with watched(daemon) as watcher:
            one = await measure_one(bench, num_kills)
            several = await measure_several(bench, num_kills, num_streams)
    is_met = one["max"] <= BASE_S[min(standby, 1)] and several["beyond_s"] <= BASE_OF_SEVERAL_S[min(standby, 1)]
    return {
        "standby": standby,
        "bars_met": is_met and several["out_of_turn"] <= MAX_OUT_OF_TURN and not watcher.refusals,
        "one_stream": one,
        "several_streams": several,
        "port": {"connections": watcher.num_connections, "refused": len(watcher.refusals), "slowest_s": round(watcher.slowest_s, 3)},
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEMO_MODEL, help="hub id, directory or .gguf file")
    parser.add_argument("--kills", type=int, default=5, help="of each kind")
    parser.add_argument("--streams", type=int, default=8, help="when there are several")
    parser.add_argument("--standby", type=int, nargs="+", default=[1, 0], help="numbers of standbys to measure")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-json", type=Path, help="append the result to this file of JSON lines")
    options = parser.parse_args(arguments)
    for standby in options.standby:
        figures = asyncio.run(measure(options.model, standby, options.kills, options.streams, options.seed))
        line = report("recovery", figures, seed=options.seed)
        print(msgspec.json.encode(line).decode())
        if options.output_json:
            append_json_line(options.output_json, line)


if __name__ == "__main__":
    main()
