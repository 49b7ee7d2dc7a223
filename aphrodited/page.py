"""The progress page: one small memory-mapped file per process, written by it and read by anybody.

A reader needs no answer from the process it judges: a page that stands still while there is work is a hang,
and the last page of a dead process says what it was doing. Writes are plain stores into shared memory
(about 2 us); a sequence counter, odd while a write is under way, makes a torn read visible.
Knows no policy: how long a standstill may last is written by the process (`allowance_s`) and judged by the monitor.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from enum import IntEnum
from pathlib import Path

import msgspec

from aphrodited.procfs import process_start_ticks

MAGIC = b"APHP"
VERSION = 2
SIZE = 4096
MESSAGE_SIZE = 256
READ_TRIES = 7


class Phase(IntEnum):
    """What the process is at."""

    STARTING = 0
    LOADING = 1
    STANDBY = 2
    READY = 3  # idle or between steps
    STEPPING = 4
    DRAINING = 5
    FAILED = 6


class Page(msgspec.Struct, frozen=True):
    """One consistent reading. Counters are since the process started; instants are CLOCK_MONOTONIC seconds.

    num_ticks: grows with every sign of life, also within a step.  allowance_s: longest standstill of num_ticks
    that this phase may have (0: the reader's own limit applies).  num_finished: finished requests (engine), answers
    (API worker) or rounds (monitor): what the governor counts as a life well begun.
    """

    pid: int
    start_ticks: int
    generation: int
    phase: Phase
    has_work: bool
    num_ticks: int
    num_steps: int
    num_finished: int
    allowance_s: float
    updated_at_s: float
    num_running: int = 0
    num_waiting: int = 0
    num_blocks_used: int = 0
    num_blocks_total: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_preemptions: int = 0
    progress: float = 0.0  # of loading, 0 to 1
    is_deterministic: bool | None = None  # of an engine, once it knows; interfaces.ModelFacts says what it means
    message: str = ""


_HEAD = struct.Struct("<4sHHI")  # magic, version, reserved, sequence
_BODY = struct.Struct("<QQQBBQQQddIIIIQQQdBH")
_TRUTHS = (None, False, True)  # as they are written
_SEQUENCE = struct.Struct("<I")
_SEQUENCE_AT = 8
_BODY_AT = _HEAD.size
_MESSAGE_AT = _BODY_AT + _BODY.size


class PageWriter:
    """The process's own page. One thread writes; `tick` is cheap enough for the inside of a step."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A new inode per life: whoever still maps a predecessor's page keeps reading that one.
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, SIZE)
            self._map = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        self._sequence = 0
        self._values: dict[str, int | float | bool | str] = {
            "pid": os.getpid(),
            "start_ticks": process_start_ticks(os.getpid()) or 0,
            "phase": Phase.STARTING,
        }
        _HEAD.pack_into(self._map, 0, MAGIC, VERSION, 0, 0)
        self.update()
        os.rename(temporary, path)

    def update(self, **values: int | float | bool | str) -> None:
        """Store the given fields of Page, keep the others; counts as a tick."""
        mine = self._values
        mine.update(values)
        mine["num_ticks"] = int(mine.get("num_ticks", 0)) + 1
        mine["updated_at_s"] = time.monotonic()
        get = mine.get
        message = str(get("message", "")).encode("utf-8", "replace")[:MESSAGE_SIZE]
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, self._sequence)
        _BODY.pack_into(
            self._map,
            _BODY_AT,
            mine["pid"],
            mine["start_ticks"],
            get("generation", 0),
            mine["phase"],
            bool(get("has_work", False)),
            mine["num_ticks"],
            get("num_steps", 0),
            get("num_finished", 0),
            get("allowance_s", 0.0),
            mine["updated_at_s"],
            get("num_running", 0),
            get("num_waiting", 0),
            get("num_blocks_used", 0),
            get("num_blocks_total", 0),
            get("num_prompt_tokens", 0),
            get("num_generated_tokens", 0),
            get("num_preemptions", 0),
            get("progress", 0.0),
            _TRUTHS.index(get("is_deterministic")),
            len(message),
        )
        self._map[_MESSAGE_AT : _MESSAGE_AT + len(message)] = message
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, self._sequence)

    def tick(self) -> None:
        """Say that the process is alive and moving, nothing else."""
        self.update()

    def close(self) -> None:
        self._map.close()


def read_page(path: Path) -> Page | None:
    """The page at `path`; None if there is none, if it is of another version, or if it stays torn for some 20 ms."""
    try:
        with open(path, "rb") as file:
            for attempt in range(READ_TRIES):
                file.seek(0)
                page = _decode(file.read(SIZE))
                if page is not None:
                    return page
                time.sleep(0.001 * attempt)  # the writer may have lost its core in the middle of a write
    except FileNotFoundError:
        pass
    return None


def _decode(raw: bytes) -> Page | None:
    if len(raw) < SIZE:
        return None
    magic, version, _, sequence = _HEAD.unpack_from(raw, 0)
    if magic != MAGIC or version != VERSION or sequence % 2:
        return None
    *fields, message_size = _BODY.unpack_from(raw, _BODY_AT)
    message = raw[_MESSAGE_AT : _MESSAGE_AT + message_size].decode("utf-8", "replace")
    try:
        fields[3] = Phase(fields[3])
        fields[-1] = _TRUTHS[fields[-1]]
    except (ValueError, IndexError):
        return None
    fields[4] = bool(fields[4])
    return Page(*[*fields, message])
