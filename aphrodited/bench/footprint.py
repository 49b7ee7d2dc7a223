"""What an idle daemon costs: start time, resident memory of each process, processor time while nothing happens.

Starts a daemon of its own from the given configuration file (no other may run from it), asks for one completion,
lets it rest, then reads /proc and stops it.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from aphrodited.bench.report import append_json_line, cpu_seconds, report
from aphrodited.config.loader import daemon_paths, load_config
from aphrodited.health.status import read_status
from aphrodited.procfs import resident_bytes

READY_TIMEOUT_S = 120.0


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def complete(url: str, model: str) -> None:
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


def measure(config_file: Path, rest_s: float) -> dict[str, Any]:
    """Figures of one daemon's life: seconds, mebibytes and percent of one core."""
    config = load_config(config_file)
    url = f"http://{config.api.host}:{config.api.port}"
    started_at_s = time.monotonic()
    daemon = subprocess.Popen([sys.executable, "-m", "aphrodited.cli.aphrodited", "--config", str(config_file)])
    try:
        while not is_ready(url):
            if daemon.poll() is not None or time.monotonic() - started_at_s > READY_TIMEOUT_S:
                raise SystemExit("the daemon did not become ready; its log says why")
            time.sleep(0.02)
        ready_s = time.monotonic() - started_at_s
        complete(url, config.models[0].name)
        time.sleep(3)  # whatever a first request leaves to do
        processes = read_status(config, daemon_paths(config)).processes
        pids = {process.name: process.pid for process in processes if process.pid}
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        time.sleep(rest_s)
        percent = {name: 100 * (cpu_seconds(pid) - before[name]) / rest_s for name, pid in pids.items()}
        memory = {name: round((resident_bytes(pid) or 0) / 2**20, 1) for name, pid in pids.items()}
        stopped_at_s = time.monotonic()
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=120)
    return {
        "ready_s": round(ready_s, 2),
        "stop_s": round(time.monotonic() - stopped_at_s, 2),
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
