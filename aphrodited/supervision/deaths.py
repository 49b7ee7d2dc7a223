"""Turns a raw wait status and the last page of a process into the ledger's account of its death.

Knows the kernel's traces of an out-of-memory kill (cgroup v2, then v1, then the machine's counter). Knows no policy.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from aphrodited.errors import EXIT_CONFIG, EXIT_DEVICE_LOST, EXIT_ENGINE_FAILED, EXIT_TEMPORARY
from aphrodited.page import Page, Phase
from aphrodited.supervision.ledger import Death, LedgerEntry, Verdict, boottime_s, stamp
from aphrodited.supervision.program_state import LaunchState, ProgramState

EXIT_MEANINGS = {
    0: "exited although nobody asked for it",
    EXIT_ENGINE_FAILED: "failed with an exception",
    EXIT_DEVICE_LOST: "lost its device",
    EXIT_TEMPORARY: "found a resource busy",
    EXIT_CONFIG: "its configuration or model cannot be used",
    127: "could not be executed",
}


class OomCounter:
    """Counts kills for lack of memory, in our cgroup if the kernel tells, else on the whole machine."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._sources = _oom_sources(proc, cgroups)
        self._seen = self._read()

    def has_grown(self) -> bool:
        """Whether there was such a kill since the last call (or since this counter was made)."""
        before, self._seen = self._seen, self._read()
        return self._seen > before

    def _read(self) -> int:
        for source in self._sources:
            try:
                lines = source.read_text().splitlines()
            except OSError:
                continue
            counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
            if counts:
                return int(counts[0])
        return 0


def _oom_sources(proc: Path, cgroups: Path) -> list[Path]:
    sources = []
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            sources += [root / group.lstrip("/") / "memory.events" for root in (cgroups, cgroups / "unified")]
        elif "memory" in controllers.split(","):
            sources.append(cgroups / "memory" / group.lstrip("/") / "memory.oom_control")
    return [source for source in sources if source.exists()] or [proc / "vmstat"]


def describe_death(
    program: str,
    model: str | None,
    pid: int,
    wait_status: int | None,
    *,
    requested: bool,
    oom: bool,
    page: Page | None,
    launch: ProgramState | None,
    verdict: Verdict | None,
) -> Death:
    """The ledger entry. wait_status: as of waitpid(2), None if it was not seen.

    page, launch, verdict: what the process, its launcher and the monitor said last, each None unless it is of `pid`.
    The uptime is the worker's: a launcher that only waited has none.
    """
    by_signal = wait_status is not None and os.WIFSIGNALED(wait_status)
    was_running = launch is not None and launch.state is LaunchState.RUNNING
    signal_name = _signal_name(os.WTERMSIG(wait_status)) if wait_status is not None and by_signal else None
    code = os.WEXITSTATUS(wait_status) if wait_status is not None and os.WIFEXITED(wait_status) else None
    return Death(
        **stamp(program),
        pid=pid,
        uptime_s=round(max(0.0, boottime_s() - launch.since_s), 3) if launch and was_running else 0.0,
        code=code,
        signal=signal_name,
        core=bool(wait_status is not None and by_signal and os.WCOREDUMP(wait_status)),
        oom=oom,
        requested=requested,
        num_finished=page.num_finished if page else 0,
        generation=page.generation if page else 0,
        cause=_cause(code, signal_name, requested, oom, page, launch, verdict),
        model=model,
        standby=page is not None and page.phase is Phase.STANDBY,
    )


def _cause(
    code: int | None,
    signal_name: str | None,
    requested: bool,
    oom: bool,
    page: Page | None,
    launch: ProgramState | None,
    verdict: Verdict | None,
) -> str:
    if verdict is not None and verdict.verdict == "memory":
        return f"memory: {verdict.reason}"
    if requested:
        return "was killed because it did not stop in time" if signal_name == "SIGKILL" else "stopped on request"
    if oom:
        return f"killed for lack of memory{_activity(page, launch)}"
    if verdict is not None:
        return f"{verdict.verdict}: {verdict.reason}"
    if page is not None and page.message and page.phase is Phase.FAILED:
        return page.message
    if signal_name is not None:
        return f"killed by {signal_name}{_activity(page, launch)}"
    return f"{EXIT_MEANINGS.get(code, f'exited with code {code}') if code is not None else 'ended'}{_activity(page, launch)}"


def _activity(page: Page | None, launch: ProgramState | None) -> str:
    if page is not None:
        return f" while {page.phase.name.lower()}"
    return " while it waited for its turn" if launch and launch.state is not LaunchState.RUNNING else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_verdict(entries: list[LedgerEntry], program: str, pid: int) -> Verdict | None:
    """The monitor's last word on a process if it led to its end. Of memory, only that it was to be replaced counts."""
    for entry in reversed(entries):
        if isinstance(entry, Verdict) and entry.program == program and entry.pid == pid:
            if entry.action in ENDING_ACTIONS:
                return entry
            if entry.verdict != "memory":
                return None
    return None


ENDING_ACTIONS = ("abort", "kill", "restart")
