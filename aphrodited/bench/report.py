"""One JSON line per measurement: the figures, and all that is needed to repeat them.

Knows nothing of what is measured.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PACKAGES = ("torch", "numba", "pyzmq", "aiohttp", "supervisor", "tokenizers")


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, user and system; proc(5), fields 14 and 15 of stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def report(
    benchmark: str, figures: dict[str, Any], *, seed: int | None = None, command: str | None = None
) -> dict[str, Any]:
    """The figures with host, versions, command and seed.  command: by itself that of the benchmark's module."""
    return {
        "benchmark": benchmark,
        **figures,
        "seed": seed,
        "host": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()},
        "versions": {"python": platform.python_version(), **{p: metadata.version(p) for p in PACKAGES}},
        "command": command or shlex.join(["python", "-m", f"aphrodited.bench.{benchmark}", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def append_json_line(path: Path, line: dict[str, Any]) -> None:
    with open(path, "ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
