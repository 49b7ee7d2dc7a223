"""Rulings: what was found about the requests of one model, in a file that is read wherever requests are submitted.

    suspects     run alone until so many of their tokens, the prompt's included, are computed
    convicted    are refused until an instant of CLOCK_BOOTTIME
    judged       generations whose deaths these rulings take into account

Written by one process, replaced atomically; requests are named by their fingerprints, in hexadecimal. Who is suspected
and why is not known here.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

JUDGEMENT_S = 0.1
"""How long a request waits for the judgement of a death before it goes on without one."""

NUM_POLLS = 20


class Sighting(msgspec.Struct, frozen=True):
    """The requests that were being computed at a death, with the tokens of each after the fatal step."""

    at_s: float
    present: dict[str, int]


class Suspect(msgspec.Struct, frozen=True):
    """alone_until: tokens that it computes alone.  at_s: when it was last seen at a death."""

    alone_until: int
    at_s: float


class Rulings(msgspec.Struct, frozen=True):
    """Instants are CLOCK_BOOTTIME seconds.  last: of the last death that counted."""

    judged: tuple[int, ...] = ()
    suspects: dict[str, Suspect] = {}
    convicted: dict[str, float] = {}
    last: Sighting | None = None


NO_RULINGS = Rulings()
_decoder = msgspec.json.Decoder(Rulings)


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def write_rulings(path: Path, rulings: Rulings) -> None:
    """Replace the file. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(rulings))
    os.replace(temporary, path)


def read_rulings(path: Path) -> Rulings | None:
    """None if there is no file or it cannot be read as one."""
    try:
        return _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


class RulingsReader:
    """The rulings on one model as they are now; without a path there are never any."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = boottime_s) -> None:
        self._path = path
        self._clock = clock
        self._seen: tuple[int, int] | None = None
        self._rulings = NO_RULINGS

    def refused_for_s(self, fingerprint: bytes) -> float | None:
        """How long such requests are still refused; None if they are not."""
        until_s = self._now().convicted.get(fingerprint.hex())
        left_s = 0.0 if until_s is None else until_s - self._clock()
        return left_s if left_s > 0 else None

    def alone_until(self, fingerprint: bytes) -> int:
        """How many of its tokens such a request computes alone; 0: none."""
        suspect = self._now().suspects.get(fingerprint.hex())
        return suspect.alone_until if suspect else 0

    async def until_judged(self, generation: int) -> bool:
        """Wait until the death of that generation was judged, JUDGEMENT_S at most; whether it was. 0: nobody's death."""
        if self._path is None or not generation:
            return True
        for _ in range(NUM_POLLS):
            if generation in self._now().judged:
                return True
            await asyncio.sleep(JUDGEMENT_S / NUM_POLLS)
        return False

    def _now(self) -> Rulings:
        """One stat(2) if nothing was written since the last look."""
        if self._path is None:
            return NO_RULINGS
        try:
            stat = self._path.stat()
        except OSError:
            self._seen, self._rulings = None, NO_RULINGS
            return NO_RULINGS
        if (seen := (stat.st_ino, stat.st_mtime_ns)) != self._seen:
            self._seen, self._rulings = seen, read_rulings(self._path) or NO_RULINGS
        return self._rulings
