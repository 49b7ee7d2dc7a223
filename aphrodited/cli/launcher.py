"""The program that Supervisor starts: the launcher, told which worker module each role is.

`python -m aphrodited.cli.launcher --runtime-dir DIR --program NAME [--listen-fd N]`; not for people.
"""

from __future__ import annotations

import sys

from aphrodited.config.schema import Config
from aphrodited.supervision.launcher import launch
from aphrodited.supervision.programs import Program, Role

WORKER_MODULES = {
    Role.ENGINE: "aphrodited.workers.engine",
    Role.API: "aphrodited.workers.api",
    Role.MONITOR: "aphrodited.workers.monitor",
}


def worker_command(config: Config, program: Program) -> tuple[list[str], dict[str, str]]:
    """The worker's command line, and the environment its role needs."""
    environment: dict[str, str] = {}
    if program.role is Role.ENGINE:
        from aphrodited.engine.environment import engine_environment

        model = next(model for model in config.models if model.name == program.model)
        environment = engine_environment(model)
    return [sys.executable, "-P", "-m", WORKER_MODULES[program.role]], environment


if __name__ == "__main__":
    launch(sys.argv[1:], worker_command)
