"""Tokens per second over time around the death of an engine under load, with a standby and without; and its picture.

All streams begin long before the kill and outlast the picture, so that every change of the curve is the death's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from aphrodited.bench.recovery import DEMO_MODEL, Bench, daemon_with
from aphrodited.bench.report import append_json_line, report
from aphrodited.bench.timeline_picture import draw

BEFORE_S = 4.0
AFTER_S = 16.0
BIN_S = 0.5
PROMPT_LEN = 32
MAX_TOKENS = 900


async def measure(model: str, standby: int, num_streams: int, seed: int) -> list[float]:
    """Tokens per second in bins of BIN_S, from BEFORE_S before the kill to AFTER_S after it."""
    with daemon_with(model, standby) as daemon:
        bench = Bench(daemon, seed)
        await bench.prefill_rate(1)  # whatever a first request leaves to do
        streams = [await bench.stream(PROMPT_LEN, MAX_TOKENS) for _ in range(num_streams)]
        try:
            for stream in streams:
                await stream.wait_for(2)
            await asyncio.sleep(BEFORE_S)
            victim = daemon.active_engine()
            at_s = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            await asyncio.sleep(AFTER_S)
            if ended := [stream.done.result() for stream in streams if stream.done.done()]:
                raise SystemExit(f"a stream ended within the picture: {ended[0] or 'it had all its tokens'}")
        finally:
            for stream in streams:
                stream.close()
    counts = [0] * round((BEFORE_S + AFTER_S) / BIN_S)
    for time_s in (time_s for stream in streams for time_s in stream.times_s):
        number = int((time_s - at_s + BEFORE_S) // BIN_S)
        if 0 <= number < len(counts):
            counts[number] += 1
    return [count / BIN_S for count in counts]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEMO_MODEL, help="hub id, directory or .gguf file")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output-json", type=Path, help="append the result to this file of JSON lines")
    parser.add_argument("--picture", type=Path, help="draw it into this file, SVG")
    options = parser.parse_args(arguments)
    curves = {
        name: asyncio.run(measure(options.model, standby, options.streams, options.seed))
        for name, standby in (("with a standby", 1), ("without", 0))
    }
    figures: dict[str, Any] = {"streams": options.streams, "bin_s": BIN_S, "first_bin_s": -BEFORE_S, "tokens_per_s": curves}
    line = report("timeline", figures, seed=options.seed)
    print(msgspec.json.encode(line).decode())
    if options.output_json:
        append_json_line(options.output_json, line)
    if options.picture:
        options.picture.write_text(draw(curves, first_s=-BEFORE_S, bin_s=BIN_S, event="kill -9"))


if __name__ == "__main__":
    main()
