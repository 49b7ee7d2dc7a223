"""Lists of CPUs as taskset(1) writes them: "0-3,8". Knows what this process may use, and nobody's reason to ask."""

from __future__ import annotations

import os

PATTERN = r"^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$"


def parse_cpus(cpus: str) -> set[int]:
    """The numbers of a list that matches PATTERN; a range that runs backwards is empty."""
    parsed: set[int] = set()
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        parsed.update(range(int(first), int(last or first) + 1))
    return parsed


def usable_cpus(cpus: str | None) -> set[int]:
    """Those of the list that this process may use; all that it may use if there is no list."""
    allowed = os.sched_getaffinity(0)
    return allowed if cpus is None else parse_cpus(cpus) & allowed
