"""Tests of aphrodited.flight."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aphrodited.flight import MAX_FILES, FlightRecorder, flight_path, read_flight

NAMES = [bytes([number]) * 16 for number in range(5)]


def path_of(folder: Path) -> Path:
    return flight_path(folder, "engine-1", os.getpid())


def test_a_record_names_the_step_under_way(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path / "flights", "engine-1", 3, 4)
    recorder.begin(NAMES[:3], [7, 8, 9])
    record = read_flight(path_of(tmp_path / "flights"))
    assert record is not None
    assert (record.generation, record.num_sequences) == (3, 3)
    assert record.sequences == ((NAMES[0], 7), (NAMES[1], 8), (NAMES[2], 9))
    recorder.begin([NAMES[4]], [1])
    record = read_flight(path_of(tmp_path / "flights"))
    assert record is not None
    assert record.sequences == ((NAMES[4], 1),)
    recorder.close()


def test_between_steps_it_names_nobody(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path, "engine-1", 1, 4)
    for _ in range(2):
        record = read_flight(path_of(tmp_path))
        assert record is not None
        assert (record.num_sequences, record.sequences) == (0, ())
        recorder.begin(NAMES[:2], [1, 2])
        recorder.end()
    recorder.close()


def test_a_batch_that_is_too_large_is_counted_and_named_as_far_as_there_is_room(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path, "engine-1", 1, 2)
    recorder.begin(NAMES, [1, 2, 3, 4, 5])
    record = read_flight(path_of(tmp_path))
    assert record is not None
    assert (record.num_sequences, record.sequences) == (5, ((NAMES[0], 1), (NAMES[1], 2)))
    recorder.close()


def test_a_record_stays_unless_the_process_ends_as_it_should(tmp_path: Path) -> None:
    recorder = FlightRecorder(tmp_path, "engine-1", 1, 2)
    recorder.close()
    assert read_flight(path_of(tmp_path)) is not None
    recorder.remove()
    assert read_flight(path_of(tmp_path)) is None


def test_the_last_lives_of_the_program_are_kept_and_those_of_others_not_touched(tmp_path: Path) -> None:
    for pid in range(20):
        for program in ("engine-1", "engine-12"):
            path = flight_path(tmp_path, program, 10_000_000 + pid)
            path.write_bytes(b"")
            os.utime(path, (pid, pid))
    FlightRecorder(tmp_path, "engine-1", 1, 2).close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in names if name.startswith("engine-1.")] == sorted(
        [path_of(tmp_path).name, *(f"engine-1.{10_000_000 + pid}" for pid in range(20 - MAX_FILES + 1, 20))]
    )
    assert len([name for name in names if name.startswith("engine-12.")]) == 20


@pytest.mark.parametrize("change", [b"", b"APHF", b"x" * 400, None])
def test_what_is_no_record_is_none(tmp_path: Path, change: bytes | None) -> None:
    FlightRecorder(tmp_path, "engine-1", 1, 2).close()
    whole = path_of(tmp_path).read_bytes()
    path_of(tmp_path).write_bytes(whole[:-1] if change is None else change)
    assert read_flight(path_of(tmp_path)) is None
