"""`scripts/chaos`: a daemon under load whose processes are killed, stopped and restarted at random, and what clients saw.

Every answer is compared with the undisturbed one. Exit code 0 only if none is wrong, none hangs, none failed but by
faults that take its connection along, the port was always open, and nothing is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from aphrodited.bench.report import report
from aphrodited.chaos.rehearsal import Options, Run, rehearse
from aphrodited.chaos.report import describe, figures_of
from aphrodited.chaos.service import ServiceError
from aphrodited.errors import ConfigError

DEMO_MODEL = "var/models/SmolLM2-135M-Instruct.Q4_1.gguf"
EXIT_BAD, EXIT_NOT_RUN, EXIT_INTERRUPTED = 1, 2, 130


def main() -> int:
    """Returns the exit code."""
    options, report_file = _parse()
    began_at_s = time.monotonic()

    def say(words: str) -> None:
        print(f"{time.monotonic() - began_at_s:7.1f} s  {words}", file=sys.stderr, flush=True)

    try:
        run = asyncio.run(_rehearse(options, say))
    except (ServiceError, ConfigError) as error:
        say(str(error))
        return EXIT_NOT_RUN
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("interrupted; everything that was started has ended")
        return EXIT_INTERRUPTED
    figures = figures_of(run)
    print(describe(figures))
    if report_file is not None:
        line = report("chaos", figures, seed=options.seed, command=shlex.join(["scripts/chaos", *sys.argv[1:]]))
        report_file.write_bytes(msgspec.json.format(msgspec.json.encode(line), indent=2) + b"\n")
    return 0 if figures["passed"] else EXIT_BAD


async def _rehearse(options: Options, say: Callable[[str], None]) -> Run:
    """SIGTERM ends it as Ctrl-C does: in order."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await rehearse(options, say)


def _parse() -> tuple[Options, Path | None]:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long there are faults")
    parser.add_argument("--seed", type=int, default=1, help="of requests and faults")
    parser.add_argument("--model", default=DEMO_MODEL, help=".gguf file or directory; by itself the demonstration model")
    parser.add_argument("--clients", type=int, default=6, help="requests at once")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer, on average")
    parser.add_argument("--period-s", type=float, default=5.0, help="between two faults, on average")
    parser.add_argument("--standby", type=int, default=1, help="standby engines")
    parser.add_argument("--report", type=Path, help="write the figures to this file, JSON")
    parser.add_argument("--logs", type=Path, help="keep the daemon's logs in this directory")
    options = parser.parse_args()
    path = Path(options.model)
    return (
        Options(
            model=str(path.resolve()) if path.exists() else options.model,
            seconds=options.seconds,
            seed=options.seed,
            num_clients=options.clients,
            num_tokens=options.tokens,
            fault_period_s=options.period_s,
            standby=options.standby,
            logs=options.logs,
        ),
        options.report,
    )


if __name__ == "__main__":
    sys.exit(main())
