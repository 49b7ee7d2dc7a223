"""A real daemon whose API workers can be made to stand still: SIGUSR1 blocks their event loop for good.

One file in three roles: the daemon (`--config FILE`), the launcher (`python -m stalling_daemon --runtime-dir ...`) and
the API worker (`worker ...`). Such a worker sleeps, it is not stopped: to the kernel it looks as well as any other.
"""

import signal
import sys
import time
from pathlib import Path

from aphrodited.cli import aphrodited
from aphrodited.cli.launcher import worker_command
from aphrodited.supervision.launcher import launch
from aphrodited.supervision.programs import Role
from aphrodited.workers import api


def command(config, program):
    arguments, environment = worker_command(config, program)
    if program.role is Role.API:
        arguments = [sys.executable, str(Path(__file__)), "worker"]
    return arguments, environment


def stand_still(_number, _frame):
    time.sleep(3600)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        signal.signal(signal.SIGUSR1, stand_still)
        sys.exit(api.main(sys.argv[2:]))
    if sys.argv[1] == "--runtime-dir":
        launch(sys.argv[1:], command)
    sys.exit(aphrodited.main(launcher_module=Path(__file__).stem))
