"""Shows the status of a daemon: as JSON, as two tables, again every second, or once it is ready."""

from __future__ import annotations

import sys
import time

from aphrodited.cli.target import Target
from aphrodited.cli.terminal import duration, megabytes, painted, printable, table, wants_colour
from aphrodited.health.states import Standing, State
from aphrodited.health.status import DaemonStatus, ModelStatus, ProcessStatus, read_status

WATCH_INTERVAL_S = 1.0
WAIT_INTERVAL_S = 0.25

EXIT_CODES = {Standing.READY: 0, Standing.DEGRADED: 1, Standing.STARTING: 1, Standing.DOWN: 3}

_COLOURS: dict[State, str] = {
    State.READY: "green",
    State.STANDBY: "green",
    State.LOADING: "yellow",
    State.STARTING: "yellow",
    State.DRAINING: "yellow",
    State.BACKOFF: "yellow",
    State.SUSPECT: "red",
    State.PARKED: "red",
    State.UNKILLABLE: "red",
}


def show_status(target: Target, *, as_json: bool, watch: bool, wait_s: float = 0.0) -> int:
    """Print the status; the exit code says it too: 0 ready, 1 degraded or starting, 3 down.

    wait_s: print it when everything is ready, or after that time.
    """
    give_up_at_s = time.monotonic() + wait_s
    while True:
        status = read_status(target.config(), target.paths)
        if not watch and (status.ready or time.monotonic() >= give_up_at_s):
            print(_render(status, as_json=as_json))
            return EXIT_CODES[status.state]
        if watch:
            clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
            print(f"{clear}{_render(status, as_json=as_json)}", flush=True)
        time.sleep(WATCH_INTERVAL_S if watch else WAIT_INTERVAL_S)


def _render(status: DaemonStatus, *, as_json: bool) -> str:
    return status.to_json() if as_json else render_status(status, use_colour=wants_colour(sys.stdout))


def render_status(status: DaemonStatus, *, use_colour: bool) -> str:
    """The standing in a line, the models, the processes."""
    standing = "green" if status.ready else "red" if status.state is Standing.DOWN else "yellow"
    head = f"aphrodited is {painted(status.state, standing, use_colour=use_colour)}"
    if status.uptime_s is not None:
        head += f", up {duration(status.uptime_s)}"
    parts = [head]
    if status.reason:
        parts.append(printable(status.reason))
    model_colours = [[None, _colour(m.state, use_colour), *[None] * 6] for m in status.models]
    parts.append(
        "\n"
        + table(
            ["MODEL", "STATE", "GENERATION", "STANDBY", "RUNNING", "WAITING", "KV CACHE", "NOTE"],
            [_model_row(model) for model in status.models],
            colours=model_colours,
        )
    )
    process_colours = [[None, None, _colour(p.state, use_colour), *[None] * 5] for p in status.processes]
    parts.append(
        "\n"
        + table(
            ["PROCESS", "ROLE", "STATE", "PID", "UP", "MEMORY", "RESTARTS", "LAST EXIT, NOTE"],
            [_process_row(process) for process in status.processes],
            colours=process_colours,
        )
    )
    return "\n".join(parts)


def _colour(state: State, use_colour: bool) -> str | None:
    return _COLOURS.get(state, "dim") if use_colour else None


def _model_row(model: ModelStatus) -> list[str]:
    used = f"{model.kv_blocks_used}/{model.kv_blocks_total}" if model.kv_blocks_total else "-"
    return [
        model.name,
        model.state,
        str(model.generation) if model.generation else "-",
        f"{model.num_standby}/{len(model.engines) - 1}" if len(model.engines) > 1 else "-",
        str(model.num_running),
        str(model.num_waiting),
        used,
        _note(model.reason, model.progress, model.next_try_s),
    ]


def _process_row(process: ProcessStatus) -> list[str]:
    last_exit = process.last_exit.summary if process.last_exit else ""
    note = _note(process.reason, process.progress, process.next_try_s)
    return [
        process.name,
        process.role,
        process.state,
        str(process.pid or "-"),
        duration(process.uptime_s),
        megabytes(process.rss_bytes),
        str(process.restarts),
        "; ".join(printable(part) for part in (last_exit, note) if part),
    ]


def _note(reason: str, progress: float | None, next_try_s: float | None) -> str:
    parts = [] if progress is None else [f"{progress:.0%} loaded"]
    if reason:
        parts.append(printable(reason))
    if next_try_s is not None:
        parts.append(f"next try in {duration(next_try_s)}")
    return "; ".join(parts)
