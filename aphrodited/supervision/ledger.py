"""The ledger: an append-only file of deaths, verdicts and resets, from which the restart policy is computed.

Each line is one JSON object of at most 4096 bytes, written with one O_APPEND write, so writers in several
processes need no lock. Time is CLOCK_BOOTTIME with the boot's id; policy looks at this boot alone.

    writer                     entry
    the supervisor's plugin    Death
    the monitor                Verdict, Ready, Order, Trial, Conviction
    aphroditectl               Reset, Reload, Order
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import msgspec


class _Entry(msgspec.Struct, frozen=True, tag_field="entry"):
    boot_id: str
    at_s: float  # CLOCK_BOOTTIME
    time: str  # UTC, RFC 3339, for people
    program: str


class Death(_Entry, frozen=True, tag="death"):
    """A process ended. num_finished is what its page said last: 0 makes this death a strike, unless in standby."""

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
    standby: bool = False  # a loaded engine that waited for its promotion


class Verdict(_Entry, frozen=True, tag="verdict"):
    """The monitor judged a process; `action` says what it did (suspect, dump, abort, kill)."""

    pid: int
    verdict: str  # hang, memory
    action: str
    reason: str
    model: str | None = None
    stopped: bool = False  # state T: somebody had stopped it


class Ready(_Entry, frozen=True, tag="ready"):
    """An engine began to serve."""

    pid: int
    generation: int
    model: str | None = None


class Reset(_Entry, frozen=True, tag="reset"):
    """Forget the deaths of `program` before this line and try again at once."""

    by: str = "operator"


class Reload(_Entry, frozen=True, tag="reload"):
    """The configuration was changed while the daemon ran. changes: `key: old -> new`, one a line.

    undone: why they were taken back, empty unless they were.
    """

    changes: str
    by: str = "operator"
    undone: str = ""


class Order(_Entry, frozen=True, tag="order"):
    """An operator wants something else of a model than before; `action` is load, unload, drain or undrain."""

    action: str
    model: str
    by: str


class Trial(_Entry, frozen=True, tag="trial"):
    """So many requests were being computed at the last two deaths of a model's engines that count: one of them is suspected."""

    pid: int  # of the second death
    num_suspects: int
    model: str


class Conviction(_Entry, frozen=True, tag="conviction"):
    """A request was found to end engines, and is refused for a while. fingerprint: in hexadecimal.  cause: of the death."""

    pid: int
    fingerprint: str
    cause: str
    model: str


LedgerEntry = Death | Verdict | Ready | Reset | Reload | Order | Trial | Conviction


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


MAX_SIZE = 1024 * 1024
"""Bytes kept on disk at most, over the ledger and the part before it (`.1`)."""

MAX_LINE = 4096
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[LedgerEntry] = msgspec.json.Decoder(LedgerEntry)


def stamp(program: str) -> dict[str, Any]:
    """The fields that every entry begins with, for now."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"boot_id": boot_id(), "at_s": boottime_s(), "time": now, "program": program}


class Ledger:
    """Reads and appends. Reading skips what it cannot read and counts it; it never fails for a bad line.

    At half of MAX_SIZE the file is renamed to `.1`, replacing the one before, and a new one begun. A writer that
    still has the renamed file open writes into `.1`, which is read too: nothing is lost, and no writer waits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_unreadable = 0

    @property
    def older_path(self) -> Path:
        return self.path.with_name(self.path.name + ".1")

    def append(self, entry: LedgerEntry) -> None:
        """Raises OSError (disk full, no permission): the caller decides what that means."""
        line = _encode_line(entry)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # an earlier write was cut short: spoil that line only
            if os.write(fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            if size + len(line) > MAX_SIZE // 2:
                self._begin_new_file(fd)
        finally:
            os.close(fd)

    def read(self) -> list[LedgerEntry]:
        """Every entry kept, oldest first, other boots' too. A missing file is an empty ledger."""
        entries: list[LedgerEntry] = []
        self.num_unreadable = 0
        for path in (self.older_path, self.path):
            try:
                lines = path.read_bytes().splitlines()
            except FileNotFoundError:
                continue
            for line in filter(None, lines):
                try:
                    entries.append(_decoder.decode(line))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    self.num_unreadable += 1
        return entries

    def changed_at_ns(self) -> int:
        """Modification time of the file, to notice cheaply that something was appended; 0 if there is none."""
        try:
            return self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def _begin_new_file(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(self.path)):  # nobody else did it meanwhile
                os.replace(self.path, self.older_path)
        except (BlockingIOError, FileNotFoundError):
            return  # another writer is at it


def _encode_line(entry: LedgerEntry) -> bytes:
    """At most MAX_LINE bytes: free text is cut to fit, as often as escapes make it necessary."""
    limit = 2048
    line = _encoder.encode(entry)
    while len(line) >= MAX_LINE and limit:
        limit //= 2
        cut = {f: v[:limit] for f in ("cause", "reason", "by", "changes", "undone") if isinstance(v := getattr(entry, f, None), str)}
        line = _encoder.encode(msgspec.structs.replace(entry, **cut))
    return line + b"\n"
