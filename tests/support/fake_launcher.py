"""The launcher as `aphrodited.cli.launcher` is, with pretending workers."""

import sys
from pathlib import Path

from aphrodited.supervision.launcher import launch

if __name__ == "__main__":
    worker = str(Path(__file__).with_name("fake_worker.py"))
    launch(sys.argv[1:], lambda config, program: ([sys.executable, worker], {}))
