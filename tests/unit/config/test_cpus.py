from __future__ import annotations

import os
import re

import pytest

from aphrodited.config.cpus import PATTERN, parse_cpus, usable_cpus


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), ("2,2,1-2", {1, 2}), ("3-1", set()), ("7-7", {7})],
)
def test_numbers_and_ranges_are_read(cpus: str, expected: set[int]) -> None:
    assert re.fullmatch(PATTERN, cpus)
    assert parse_cpus(cpus) == expected


@pytest.mark.parametrize("cpus", ["", "a", "1-", "-1", "1,,2", "1-2-3", "0 - 3", "99999"])
def test_anything_else_does_not_match(cpus: str) -> None:
    assert not re.fullmatch(PATTERN, cpus)


def test_only_cpus_of_this_process_are_usable() -> None:
    allowed = os.sched_getaffinity(0)
    assert usable_cpus(None) == allowed
    assert usable_cpus(f"{min(allowed)},9999") == {min(allowed)}
    assert not usable_cpus("9999")
