"""Which of a configuration's processes a word of the operator means. Names only: knows nothing of what runs."""

from __future__ import annotations

from aphrodited.config.schema import Config
from aphrodited.supervision.programs import Program, programs

__all__ = ["Program", "programs", "select_programs"]


def select_programs(config: Config, word: str) -> list[Program]:
    """The processes that a word means: a role, a model or a process name; [] if it means none."""
    return [program for program in programs(config) if word in (program.name, program.role, program.model)]
