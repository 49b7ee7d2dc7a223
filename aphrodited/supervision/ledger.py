"""The ledger: an append-only file of deaths, verdicts and resets, from which the restart policy is computed.

Each line is one JSON object of at most 4096 bytes, written with one O_APPEND write, so writers in several
processes need no lock. Time is CLOCK_BOOTTIME with the boot's id; policy looks at this boot alone.

    writer                     entry
    the supervisor's plugin    Death
    the monitor                Verdict, Ready
    aphroditectl               Reset
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec


class _Entry(msgspec.Struct, frozen=True, tag_field="entry"):
    boot_id: str
    at_s: float  # CLOCK_BOOTTIME
    time: str  # UTC, RFC 3339, for people
    program: str


class Death(_Entry, frozen=True, tag="death"):
    """A process ended. num_finished is what its page said last: 0 makes this death a strike."""

    pid: int
    uptime_s: float
    code: int | None = None
    signal: str | None = None
    core: bool = False
    oom: bool = False
    requested: bool = False  # stopped on request: never a strike
    num_finished: int = 0
    generation: int = 0
    cause: str = ""
    model: str | None = None


class Verdict(_Entry, frozen=True, tag="verdict"):
    """The monitor judged a process; `action` says what it did (suspect, dump, abort, kill)."""

    pid: int
    verdict: str  # hang, memory
    action: str
    reason: str
    model: str | None = None


class Ready(_Entry, frozen=True, tag="ready"):
    """An engine began to serve."""

    pid: int
    generation: int
    model: str | None = None


class Reset(_Entry, frozen=True, tag="reset"):
    """Forget the deaths of `program` before this line and try again at once."""

    by: str = "operator"


LedgerEntry = Death | Verdict | Ready | Reset


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


MAX_SIZE = 1024 * 1024
MAX_LINE = 4096
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[LedgerEntry] = msgspec.json.Decoder(LedgerEntry)


def stamp(program: str) -> dict[str, str | float]:
    """The fields that every entry begins with, for now."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"boot_id": boot_id(), "at_s": boottime_s(), "time": now, "program": program}


class Ledger:
    """Reads and appends. Reading skips what it cannot read and counts it; it never fails for a bad line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_unreadable = 0

    def append(self, entry: LedgerEntry) -> None:
        """Raises OSError (disk full, no permission): the caller decides what that means."""
        raise NotImplementedError

    def read(self) -> list[LedgerEntry]:
        """Every entry kept, oldest first, other boots' too. A missing file is an empty ledger."""
        raise NotImplementedError
