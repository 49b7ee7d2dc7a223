"""The flight record: which requests an engine computes at this moment, for whoever looks into its death.

One small memory-mapped file per process, `<program>.<pid>`, which outlives it. Before a step the engine stores the
fingerprint of every sequence in the batch and how far the step takes it; after the step it says that none is under way.
A record of a dead process that still names requests therefore says what it died of, or beside. Nobody reads it before.

The file of an earlier life is somebody else's to remove, once it was read; should nobody be there to do it, all but the
last MAX_FILES of a program are removed by its next life. Knows no request and no policy.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

MAGIC = b"APHF"
VERSION = 1
FINGERPRINT_SIZE = 16
UNKNOWN = bytes(FINGERPRINT_SIZE)
"""Of a sequence whose client gave none."""

MAX_FILES = 8

_HEAD = struct.Struct("<4sHHIQI")  # magic, version, reserved, capacity, generation, sequences of the step under way
_COUNT = struct.Struct("<I")
_COUNT_AT = _HEAD.size - _COUNT.size


class FlightRecord(msgspec.Struct, frozen=True):
    """What was being computed.

    num_sequences: in the batch; more than are named if the file was too small for it.
    sequences: the fingerprint of each, and how many of its tokens, the prompt's included, the step would have left computed.
    """

    generation: int
    num_sequences: int
    sequences: tuple[tuple[bytes, int], ...]


def flight_path(folder: Path, program: str, pid: int) -> Path:
    return folder / f"{program}.{pid}"


class FlightRecorder:
    """The record of this process. One thread writes.  capacity: sequences that it can name."""

    def __init__(self, folder: Path, program: str, generation: int, capacity: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_old(folder, program)
        self._capacity = capacity
        self._positions_at = _HEAD.size + capacity * FINGERPRINT_SIZE
        size = self._positions_at + capacity * 4
        self._path = flight_path(folder, program, os.getpid())
        self._path.unlink(missing_ok=True)  # of another process that had our number
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        _HEAD.pack_into(self._map, 0, MAGIC, VERSION, 0, capacity, generation, 0)

    def begin(self, fingerprints: Sequence[bytes], num_tokens: Sequence[int]) -> None:
        """A step, or the taking in of a request, begins.  num_tokens: of each sequence, computed after it.

        The count comes last: a record that was cut short in here names nobody.
        """
        num_named = min(len(fingerprints), self._capacity)
        memory = self._map
        _COUNT.pack_into(memory, _COUNT_AT, 0)
        names = b"".join(fingerprints[:num_named])
        memory[_HEAD.size : _HEAD.size + len(names)] = names
        positions = array("I", num_tokens[:num_named]).tobytes()
        memory[self._positions_at : self._positions_at + len(positions)] = positions
        _COUNT.pack_into(memory, _COUNT_AT, len(fingerprints))

    def end(self) -> None:
        """Nothing is being computed."""
        _COUNT.pack_into(self._map, _COUNT_AT, 0)

    def close(self) -> None:
        self._map.close()

    def remove(self) -> None:
        """This process ends as it should: there is nothing to look into."""
        self._path.unlink(missing_ok=True)


def read_flight(path: Path) -> FlightRecord | None:
    """The record at `path`; None if there is none or it cannot be read as one."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) < _HEAD.size:
        return None
    magic, version, _, capacity, generation, num_sequences = _HEAD.unpack_from(raw)
    positions_at = _HEAD.size + capacity * FINGERPRINT_SIZE
    if magic != MAGIC or version != VERSION or len(raw) != positions_at + 4 * capacity:
        return None
    num_named = min(num_sequences, capacity)
    positions = array("I", raw[positions_at : positions_at + 4 * num_named])
    names = (raw[at : at + FINGERPRINT_SIZE] for at in range(_HEAD.size, positions_at, FINGERPRINT_SIZE))
    return FlightRecord(generation, num_sequences, tuple(zip(names, positions, strict=False)))


def _remove_old(folder: Path, program: str) -> None:
    """Leave the records of the last lives."""
    records = [path for path in folder.iterdir() if path.name.rpartition(".")[0] == program]
    records.sort(key=lambda path: path.stat().st_mtime_ns)
    for path in records[: max(0, len(records) - MAX_FILES + 1)]:
        path.unlink(missing_ok=True)
