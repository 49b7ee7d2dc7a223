"""The closed set of programs that a configuration asks for: their names, roles, groups, priorities and stop times.

Names come from a role, a model's hash and a small integer, never from the user. Groups stop from the highest
priority down, all programs of one at once: API workers drain while the engines still compute.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from aphrodited.config.schema import Config
from aphrodited.paths import MONITOR_PROGRAM, api_program, engine_program

STOP_SLACK_S = 5
"""What a worker gets on top of its drain to close and exit, before it is killed."""


class Role(StrEnum):
    MONITOR = "monitor"
    ENGINE = "engine"
    API = "api"


class Program(msgspec.Struct, frozen=True):
    """One supervised process. stop_timeout_s: from SIGTERM to SIGKILL."""

    name: str
    role: Role
    stop_timeout_s: int
    model: str | None = None
    of_several: bool = False  # engines of this model

    @property
    def title(self) -> str:
        """For people: an engine's name is a hash."""
        if self.role is not Role.ENGINE:
            return self.name
        number = f" {self.name.rpartition('-')[2]}" if self.of_several else ""
        return f"{'' if number else 'the '}engine{number} of {self.model}"


GROUPS: dict[Role, tuple[str, int]] = {
    Role.MONITOR: ("monitor", 10),
    Role.ENGINE: ("engines", 20),
    Role.API: ("api", 30),
}
"""Supervisor's group and priority of each role."""


def programs(config: Config) -> list[Program]:
    """Every program, in the order of its start."""
    engine_stop_s = math.ceil(config.recovery.engine_stop_timeout_s)
    api_stop_s = math.ceil(config.api.drain_timeout_s) + STOP_SLACK_S
    return [
        Program(MONITOR_PROGRAM, Role.MONITOR, STOP_SLACK_S),
        *(
            Program(engine_program(model.name, index), Role.ENGINE, engine_stop_s, model.name, model.num_standbys > 0)
            for model in config.models
            for index in range(1 + model.num_standbys)
        ),
        *(Program(api_program(index), Role.API, api_stop_s) for index in range(config.api.workers)),
    ]


def full_name(program: str) -> str:
    """The name under which Supervisor knows a program: GROUP:PROGRAM."""
    role = next((role for role in Role if program.split("-")[0] == role), None)
    return f"{GROUPS[role][0]}:{program}" if role else program


def stop_timeout_s(config: Config) -> int:
    """How long stopping everything takes at most: the groups stop one after the other."""
    slowest = dict.fromkeys(Role, 0)
    for program in programs(config):
        slowest[program.role] = max(slowest[program.role], program.stop_timeout_s)
    return sum(slowest.values())
