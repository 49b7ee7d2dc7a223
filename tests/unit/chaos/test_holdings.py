"""What counts as a leak between two looks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from aphrodited.chaos.holdings import SPARE_DESCRIPTORS, Holdings, files_of
from aphrodited.paths import DaemonPaths

MIB = 1 << 20
BEFORE = Holdings(Counter({"api": 2, "engine": 1}), {"api": 20}, {"api": 80 * MIB}, Counter({"m/N/input": 1}))


def test_as_much_as_before_or_less_is_no_leak() -> None:
    assert BEFORE.leaks_since(BEFORE) == []
    assert Holdings(Counter({"api": 1})).leaks_since(BEFORE) == []


def test_whatever_is_more_is_named() -> None:
    after = Holdings(
        Counter({"api": 2, "engine": 1, "helper": 3}),
        {"api": 21 + SPARE_DESCRIPTORS},
        {"api": 300 * MIB},
        Counter({"m/N/input": 2}),
        num_blocks_used=5,
    )
    assert after.leaks_since(BEFORE) == [
        "3 more of helper",
        "1 more of m/N/input",
        "25 descriptors of api, 20 before",
        "300 MiB of api, 80 MiB before",
        "5 KV blocks in use",
    ]


def test_folders_of_two_generations_are_two_of_the_same(tmp_path: Path) -> None:
    for generation in ("3", "17"):
        (tmp_path / "m/01ab45ef" / generation).mkdir(parents=True)
        (tmp_path / "m/01ab45ef" / generation / "input").touch()
    (tmp_path / "m/01ab45ef/rulings").touch()
    files = files_of(DaemonPaths(tmp_path, tmp_path, tmp_path))
    assert files == {"m": 1, "m/01ab45ef": 1, "m/01ab45ef/N": 2, "m/01ab45ef/N/input": 2}


def test_the_flight_record_of_one_engine_is_as_good_as_that_of_another(tmp_path: Path) -> None:
    (tmp_path / "flights").mkdir()
    for name in ("engine-01ab45ef-0.123", "engine-01ab45ef-1.77"):
        (tmp_path / "flights" / name).touch()
    assert files_of(DaemonPaths(tmp_path, tmp_path, tmp_path)) == {"flights": 1, "flights/engine": 2}
