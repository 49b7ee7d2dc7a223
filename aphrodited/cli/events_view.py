"""Shows the ledger: deaths, verdicts, promotions, resets, reloads, orders and quarantine, and goes on with -f."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import assert_never

import msgspec

from aphrodited.cli.terminal import complain, duration, painted, printable, wants_colour
from aphrodited.health.record import describe_exit
from aphrodited.supervision.ledger import (
    Conviction,
    Death,
    Ledger,
    LedgerEntry,
    Order,
    Ready,
    Reload,
    Reset,
    Trial,
    Verdict,
)

POLL_INTERVAL_S = 0.2


def show_events(path: Path, programs: set[str] | None, *, as_json: bool, follow: bool) -> int:
    ledger = Ledger(path)
    use_colour = wants_colour(sys.stdout)
    num_seen = _show_from(ledger, 0, programs, as_json=as_json, use_colour=use_colour)
    if not num_seen and not follow:
        complain(f"nothing has happened yet: there is no entry in {path}")
    if ledger.num_unreadable:
        complain(f"skipped {ledger.num_unreadable} unreadable lines of {path}")
    changed_at_ns = ledger.changed_at_ns()
    while follow:
        sys.stdout.flush()
        time.sleep(POLL_INTERVAL_S)
        if (now_ns := ledger.changed_at_ns()) != changed_at_ns:
            changed_at_ns = now_ns
            num_seen = _show_from(ledger, num_seen, programs, as_json=as_json, use_colour=use_colour)
    return 0


def _show_from(ledger: Ledger, start: int, programs: set[str] | None, *, as_json: bool, use_colour: bool) -> int:
    entries = ledger.read()
    if len(entries) < start:  # the oldest part was dropped
        start = 0
    for entry in entries[start:]:
        if programs is None or entry.program in programs:
            print(msgspec.json.encode(entry).decode() if as_json else render_event(entry, use_colour=use_colour))
    return len(entries)


def render_event(entry: LedgerEntry, *, use_colour: bool) -> str:
    """TIME PROGRAM what happened."""
    colour: str | None = None
    match entry:
        case Death():
            colour = None if entry.requested or entry.code == 0 else "red"
            life = f"after {duration(entry.uptime_s)} and {entry.num_finished} finished"
            what = f"died: {describe_exit(entry).summary} (pid {entry.pid}, {life})"
        case Verdict():
            colour = "yellow"
            what = f"{entry.verdict}, {entry.action}: {entry.reason} (pid {entry.pid})"
        case Ready():
            colour = "green"
            what = f"ready: generation {entry.generation} (pid {entry.pid})"
        case Reset():
            what = f"reset by {entry.by}"
        case Reload():
            what = f"{'reload undone' if entry.undone else 'reloaded'} by {entry.by}: {entry.changes.replace(chr(10), '; ')}"
            if entry.undone:
                colour, what = "yellow", f"{what} ({entry.undone})"
        case Order():
            what = f"{entry.action} of {entry.model}, ordered by {entry.by}"
        case Trial():
            colour = "yellow"
            what = f"suspects: {entry.num_suspects} requests were computed at its last two deaths; each runs alone for a while"
        case Conviction():
            colour = "red"
            what = f"quarantine: request {entry.fingerprint} ended engines and is refused for an hour; the last: {entry.cause}"
        case _:
            assert_never(entry)
    return f"{entry.time} {entry.program:<18} {painted(printable(what), colour, use_colour=use_colour)}"
