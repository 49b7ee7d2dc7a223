"""Tests of aphrodited.rulings."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aphrodited.rulings import Rulings, RulingsReader, Sighting, Suspect, read_rulings, write_rulings

NAME = bytes(range(16))
RULINGS = Rulings((1, 2), {NAME.hex(): Suspect(9, 5.0)}, {"ff": 100.0}, Sighting(5.0, {"ff": 3}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m" / "rulings"


def test_what_is_written_is_read(path: Path) -> None:
    assert read_rulings(path) is None
    write_rulings(path, RULINGS)
    assert read_rulings(path) == RULINGS
    assert [file.name for file in path.parent.iterdir()] == ["rulings"]
    path.write_bytes(b'{"judged": "x"}')
    assert read_rulings(path) is None


def test_a_reader_sees_each_change(path: Path) -> None:
    reader = RulingsReader(path, clock=lambda: 40.0)
    assert reader.refused_for_s(b"\xff") is None
    write_rulings(path, RULINGS)
    assert reader.refused_for_s(b"\xff") == 60.0
    assert reader.alone_until(NAME) == 9
    assert reader.alone_until(b"\xff") == 0
    write_rulings(path, Rulings())
    assert reader.refused_for_s(b"\xff") is None
    path.write_bytes(b"not rulings")
    assert reader.alone_until(NAME) == 0
    path.unlink()
    assert reader.alone_until(NAME) == 0


def test_a_conviction_that_is_over_refuses_nobody(path: Path) -> None:
    write_rulings(path, RULINGS)
    assert RulingsReader(path, clock=lambda: 100.0).refused_for_s(b"\xff") is None


def test_without_a_judge_there_is_nothing() -> None:
    reader = RulingsReader()
    assert (reader.refused_for_s(NAME), reader.alone_until(NAME)) == (None, 0)
    asyncio.run(reader.until_judged(1))


def test_a_judgement_is_waited_for_a_short_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            write_rulings(path, RULINGS)

    monkeypatch.setattr(asyncio, "sleep", nap)
    reader = RulingsReader(path)
    asyncio.run(reader.until_judged(2))
    assert len(naps) == 3
    asyncio.run(reader.until_judged(2))
    assert len(naps) == 3
    asyncio.run(reader.until_judged(0))  # nobody knows which engine it was
    assert len(naps) == 3
    naps.clear()
    asyncio.run(reader.until_judged(7))
    assert sum(naps) == pytest.approx(0.1)
