"""Which daemon a command is about, and which of its processes.

A running daemon is described by what it started with, one that is down by its file. Either way the directories
come from the file's `paths` alone, so that a command works while somebody is editing the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from aphrodited.config.directories import SYSTEM_CONFIG
from aphrodited.config.loader import find_paths, load_config, read_effective
from aphrodited.config.schema import Config
from aphrodited.errors import AphroditeError
from aphrodited.health.probes import lock_holder
from aphrodited.health.programs import Program, programs, select_programs
from aphrodited.paths import DaemonPaths

SUPERVISOR = "supervisor"
CONFIG_VARIABLE = "APHRODITED_CONFIG"


class UsageError(AphroditeError):
    """The command cannot be carried out as it was given."""

    code = "usage_error"


@dataclass(frozen=True, slots=True)
class Target:
    """One daemon, running or not."""

    config_path: Path
    paths: DaemonPaths

    def daemon_pid(self) -> int | None:
        return lock_holder(self.paths.daemon_lock)

    def config(self) -> Config:
        """What the daemon runs with, else what it would run with. Raises ConfigError."""
        if self.daemon_pid() is not None and self.paths.effective_config.exists():
            return read_effective(self.paths.effective_config)
        return load_config(self.config_path)

    def programs(self, words: Iterable[str]) -> list[Program]:
        """The processes that roles, model names or process names mean, each once; all of them for no word."""
        config = self.config()
        known = programs(config)
        if not (words := list(words)) or "all" in words:
            return known
        chosen: dict[str, Program] = {}
        for word in words:
            matches = select_programs(config, word)
            if not matches:
                words_known = [name for p in known for name in (p.role, p.model, p.name) if name]
                there = ", ".join(dict.fromkeys(words_known))
                raise UsageError(f"{word} is no role, model or process of this daemon; there are: {there}")
            chosen |= {program.name: program for program in matches}
        return list(chosen.values())

    def log_names(self, words: list[str]) -> set[str] | None:
        """The names of the logs that the words mean; None for no word: every log there is."""
        others = [word for word in words if word != SUPERVISOR]
        names = {program.name for program in self.programs(others)} if others else set()
        return names | ({SUPERVISOR} if SUPERVISOR in words else set()) if words else None


def config_path(given: Path | None) -> Path:
    """That file, or $APHRODITED_CONFIG, or the system's."""
    return given or Path(os.environ.get(CONFIG_VARIABLE) or SYSTEM_CONFIG)


def find_target(given: Path | None) -> Target:
    """The daemon of a configuration file. Raises ConfigError."""
    path = config_path(given)
    return Target(path, find_paths(path))


def names_supervisor(words: list[str]) -> bool:
    """Whether a command is about the daemon itself."""
    return words == [SUPERVISOR]
