"""Problems in a configuration: where, which key, what is wrong, and how to show that to a person.

A problem is shown with its line and a caret, the way compilers do it:

    aphrodited.yaml:12:5: models[0].engine.max_num_seq: unknown key; did you mean max_num_seqs?
            max_num_seq: 64
            ^

Knows no YAML beyond the marks of its nodes, and no key of the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import yaml

MAX_SHOWN = 100  # problems
MAX_WIDTH = 160  # characters of a source line


@dataclass(frozen=True, slots=True)
class Problem:
    """mark: where in a source (its `name`, line and column); None where a whole source is meant."""

    mark: yaml.Mark | None
    key: str
    message: str


def override_name(override: str) -> str:
    """What the marks of an override from the command line call their source."""
    return f"--set {override}"


def is_override(mark: yaml.Mark) -> bool:
    return mark.name.startswith("--set ")


def place(mark: yaml.Mark) -> str:
    """The mark as SOURCE:LINE:COLUMN; an override has no lines."""
    return mark.name if is_override(mark) else f"{mark.name}:{mark.line + 1}:{mark.column + 1}"


def render(problems: Iterable[Problem], sources: Mapping[str, list[str]]) -> list[str]:
    """Each problem as one entry of up to three lines, in the order of the file.

    sources: the lines of each source by its name.
    """
    ordered = sorted(problems, key=_order)
    shown = [_entry(problem, sources) for problem in ordered[:MAX_SHOWN]]
    if len(ordered) > MAX_SHOWN:
        shown.append(f"and {len(ordered) - MAX_SHOWN} more problems")
    return shown


def _order(problem: Problem) -> tuple[bool, int, int]:
    mark = problem.mark
    if mark is None:
        return (False, -1, -1)
    return (is_override(mark), mark.line, mark.column)


def _entry(problem: Problem, sources: Mapping[str, list[str]]) -> str:
    head = [] if problem.mark is None else [place(problem.mark)]
    text = ": ".join([*head, *([problem.key] if problem.key else []), problem.message])
    if problem.mark is None:
        return text
    lines = sources.get(problem.mark.name, [])
    if problem.mark.line >= len(lines):
        return text
    line, column = lines[problem.mark.line], problem.mark.column
    start = max(0, column - MAX_WIDTH // 2) if len(line) > MAX_WIDTH else 0
    shown = line[start : start + MAX_WIDTH]
    # Tabs stay tabs, so that the caret stands below its character on any terminal.
    indent = "".join("\t" if character == "\t" else " " for character in line[start:column])
    return f"{text}\n    {_printable(shown)}\n    {indent}^"


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line)
