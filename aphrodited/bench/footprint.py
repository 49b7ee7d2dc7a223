"""What an idle daemon costs: start time, resident memory of each process, processor time while nothing happens.

Starts a daemon of its own from the given configuration file (no other may run from it), asks for one completion,
lets it rest, then reads /proc and stops it.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from aphrodited.bench.daemon import DaemonUnderTest
from aphrodited.bench.report import append_json_line, report
from aphrodited.procfs import resident_bytes


def complete(url: str, model: str) -> None:
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def measure(config_file: Path, rest_s: float) -> dict[str, Any]:
    """Figures of one daemon's life: seconds, mebibytes and percent of one core."""
    daemon = DaemonUnderTest(config_file)
    try:
        complete(daemon.url, daemon.config.models[0].name)
        daemon.wait_settled()
        time.sleep(3)  # whatever a first request leaves to do
        before = daemon.cpu_s()
        time.sleep(rest_s)
        percent = {name: 100 * (cpu_s - before[name]) / rest_s for name, cpu_s in daemon.cpu_s().items()}
        memory = {name: round((resident_bytes(pid) or 0) / 2**20, 1) for name, pid in daemon.pids.items()}
    finally:
        stop_s = daemon.stop()
    return {
        "ready_s": round(daemon.ready_s, 2),
        "stop_s": round(stop_s, 2),
        "resident_mib": memory,
        "idle_percent_of_a_core": {name: round(value, 3) for name, value in percent.items()},
        "idle_percent_total": round(sum(percent.values()), 3),
        "rest_s": rest_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--rest-s", type=float, default=30.0, help="how long to watch the idle daemon")
    parser.add_argument("--output-json", type=Path, help="append the result to this file of JSON lines")
    options = parser.parse_args()
    line = report("footprint", measure(options.config, options.rest_s))
    print(json.dumps(line, indent=2))
    if options.output_json:
        append_json_line(options.output_json, line)


if __name__ == "__main__":
    main()
