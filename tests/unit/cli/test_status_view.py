"""The status as a table."""

from __future__ import annotations

from aphrodited.cli.status_view import EXIT_CODES, render_status
from aphrodited.health.record import LastExit
from aphrodited.health.states import Standing, State
from aphrodited.health.status import DaemonStatus, ModelStatus, ProcessStatus
from aphrodited.supervision.programs import Role

DIED = LastExit(
    time="2026-01-01T00:00:00Z",
    pid=6,
    summary="signal SIGKILL",
    code=None,
    signal="SIGKILL",
    oom=False,
    requested=False,
    uptime_s=3.0,
    cause="",
)
STATUS = DaemonStatus(
    ready=False,
    state=Standing.DEGRADED,
    reason="",
    uptime_s=4000.0,
    processes=(
        ProcessStatus("engine-1", Role.ENGINE, "m", State.READY, 7, generation=3, uptime_s=65.0, restarts=2, last_exit=DIED),
        ProcessStatus("engine-2", Role.ENGINE, "n", State.PARKED, 8, reason="no such file\x1b[2J", next_try_s=290.0),
    ),
    models=(
        ModelStatus("m", State.READY, 3, ("engine-1",), "embedded", kv_blocks_used=5, kv_blocks_total=10),
        ModelStatus("n", State.LOADING, None, ("engine-2",), "embedded", progress=0.5),
    ),
)


def test_everything_that_matters_is_in_the_tables() -> None:
    text = render_status(STATUS, use_colour=False)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert text.startswith("aphrodited is degraded, up 1h6m\n")
    assert rows["m"][:7] == ["m", "ready", "3", "-", "0", "0", "5/10"]
    assert rows["n"][6:] == ["-", "50%", "loaded"]
    assert rows["engine-1"][1:5] == ["engine", "ready", "7", "1m5s"]
    assert "signal SIGKILL" in " ".join(rows["engine-1"])
    assert "next try in 4m50s" in " ".join(rows["engine-2"])


def test_reasons_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in render_status(STATUS, use_colour=False)


def test_colours_follow_the_state() -> None:
    text = render_status(STATUS, use_colour=True)
    assert "\x1b[31mparked\x1b[0m" in text
    assert "\x1b[32mready\x1b[0m" in text


def test_every_standing_has_an_exit_code() -> None:
    assert set(EXIT_CODES) == set(Standing)
    assert EXIT_CODES[Standing.READY] == 0
