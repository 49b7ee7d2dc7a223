"""What the launcher says of its program before it becomes the program: waiting, parked or running.

One small JSON file per program, replaced atomically. Instants are CLOCK_BOOTTIME seconds (they go on through
suspend and mean nothing after a reboot; runtime directories do not outlive one either).
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

import msgspec


class LaunchState(StrEnum):
    WAITING = "waiting"  # for the old process group to be gone
    BACKOFF = "backoff"  # a short, growing delay after strikes
    PARKED = "parked"  # given up for now; probed on a schedule
    RUNNING = "running"  # the worker was executed


class ProgramState(msgspec.Struct, frozen=True):
    """reason is empty unless something went wrong before. next_try_at_s is set for backoff and parked."""

    program: str
    pid: int
    state: LaunchState
    since_s: float
    reason: str = ""
    next_try_at_s: float | None = None
    num_strikes: int = 0


_decoder = msgspec.json.Decoder(ProgramState)


def write_program_state(path: Path, state: ProgramState) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(state))
    os.replace(temporary, path)


def read_program_state(path: Path) -> ProgramState | None:
    """None if there is none or it cannot be read as one."""
    try:
        return _decoder.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None
