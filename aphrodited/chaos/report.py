"""The figures of a chaos run, for a file and for people. Knows no process and no transport."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from aphrodited.bench.pauses import percentiles_s
from aphrodited.chaos.client import Ending, Outcome
from aphrodited.chaos.holdings import Holdings
from aphrodited.chaos.rehearsal import Run
from aphrodited.chaos.verdicts import Judged, Verdict, recovery_times_s

MAX_SHOWN = 20
_BAD = (Verdict.WRONG, Verdict.FAILED, Verdict.HUNG)


def figures_of(run: Run) -> dict[str, Any]:
    """Numbers, names and short texts only; `passed` is the verdict on the whole."""
    verdicts = Counter(judged.verdict for judged in run.judged)
    outcomes = [judged.outcome for judged in run.judged]
    leaks = run.after.leaks_since(run.before)
    recovery = recovery_times_s(run.faults, outcomes)
    return {
        "passed": not (any(verdicts[verdict] for verdict in _BAD) or leaks or run.refusals),
        "seconds": run.options.seconds,
        "clients": run.options.num_clients,
        "standby": run.options.standby,
        "requests": {"all": len(run.judged), **{str(verdict): verdicts[verdict] for verdict in Verdict}},
        "requests_by_kind": _count(outcome.case.kind for outcome in outcomes),
        "streams": sum(outcome.case.is_streamed for outcome in outcomes),
        "faults": len(run.faults),
        "faults_by_kind": _count(fault.kind.name for fault in run.faults),
        "resumed": run.num_resumed,
        "answers_disturbed": sum(bool(j.faults) for j in run.judged if j.outcome.ending is Ending.ANSWERED),
        "recovery_s": {
            kind: {"streams": len(times), **percentiles_s(times)} for kind, times in sorted(recovery.items()) if times
        },
        "answer_s": percentiles_s([_duration_s(o) for o in outcomes if o.ending is Ending.ANSWERED]),
        "port": {"connections": run.num_connections, "refused": len(run.refusals), "slowest_s": round(run.slowest_connection_s, 3)},
        "daemon_lives": run.num_daemon_lives,
        "watchdog_kills": run.num_watchdog_kills,
        "settled_after_s": round(run.settled_s, 1),
        "leaks": leaks,
        "held": {"before": _held(run.before), "after": _held(run.after)},
        "problems": [*run.refusals, *(_problem(judged) for judged in run.judged if judged.verdict in _BAD)][:MAX_SHOWN],
    }


def describe(figures: dict[str, Any]) -> str:
    """The figures as lines for a terminal."""
    requests = ", ".join(f"{number} {name}" for name, number in figures["requests"].items() if name != "all")
    faults = ", ".join(f"{number} {name}" for name, number in figures["faults_by_kind"].items())
    port = figures["port"]
    lines = [
        f"requests   {figures['requests']['all']}: {requests}",
        f"faults     {figures['faults']}: {faults}",
        f"resumed    {figures['resumed']} times; {figures['answers_disturbed']} answers had a fault in their time",
        *(f"recovery   {kind}: {values} s" for kind, values in figures["recovery_s"].items()),
        f"port       {port['connections']} connections, {port['refused']} refused, the slowest after {port['slowest_s']} s",
        f"daemon     {figures['daemon_lives']} lives, {figures['watchdog_kills']} ended by the watchdog; settled after {figures['settled_after_s']} s",
        f"left over  {'; '.join(figures['leaks']) or 'nothing'}",
        *(f"problem    {problem}" for problem in figures["problems"]),
        "passed" if figures["passed"] else "NOT PASSED",
    ]
    return "\n".join(lines)


def _count(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _duration_s(outcome: Outcome) -> float:
    return outcome.ended_at_s - outcome.sent_at_s


def _held(held: Holdings) -> dict[str, Any]:
    return {
        "processes": dict(sorted(held.processes.items())),
        "descriptors": dict(sorted(held.descriptors.items())),
        "resident_mib": {role: size >> 20 for role, size in sorted(held.resident_bytes.items())},
        "files": held.files.total(),
        "kv_blocks": held.num_blocks_used,
    }


def _problem(judged: Judged) -> str:
    case = judged.outcome.case
    return (
        f"request {case.number} ({case.kind}{', streamed' if case.is_streamed else ''}) {judged.verdict}:"
        f" {judged.reason}; after {_duration_s(judged.outcome):.1f} s, {len(judged.outcome.text_times_s)} events;"
        f" faults in its time: {', '.join(judged.faults) or 'none'}"
    )
