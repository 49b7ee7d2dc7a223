"""An engine process that ends with the process that started it; see workers.launch. Knows no more of its parent."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from aphrodited.workers import engine

GRACE_S = 3.0
"""From SIGTERM to SIGKILL, for an engine whose parent is gone."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="An engine process that ends with its parent.", add_help=False)
    parser.add_argument("--parent-fd", type=int, required=True, help="pidfd of the parent, inherited")
    parser.add_argument("--runtime-dir", type=Path, required=True)
    options, _ = parser.parse_known_args(arguments)
    threading.Thread(
        target=_end_with, args=(options.parent_fd, options.runtime_dir.parent), name="parent", daemon=True
    ).start()
    given = list(sys.argv[1:] if arguments is None else arguments)
    at = given.index("--parent-fd")
    return engine.main(given[:at] + given[at + 2 :])


def _end_with(parent_fd: int, folder: Path) -> None:
    """Wait for the parent's end, then clean up for it and end this process: in order if it can, in any case soon."""
    watch = select.poll()
    watch.register(parent_fd, select.POLLIN)
    watch.poll()
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
