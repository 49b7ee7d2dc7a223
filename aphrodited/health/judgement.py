"""Which requests end engines: a pure function over what is known of one model and one more death of its engines.

    a request that was being computed         at one counted death           goes on like the others
                                              at two in a row                is a suspect: it runs alone until one token
                                                                             past the fatal one
    a suspect, alone at a counted death                                      is convicted

A death counts if its reason may lie in what was computed. That of somebody's `kill -9`, of a stop on request, of a lost
device or of a wrong configuration does not, so none of them convicts anybody. Knows no file, no clock and no process.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from aphrodited.errors import EXIT_CONFIG, EXIT_DEVICE_LOST, EXIT_OK, EXIT_TEMPORARY
from aphrodited.rulings import Rulings, Sighting, Suspect
from aphrodited.supervision.ledger import Death, Verdict

QUARANTINE_S = 3600.0
TRIAL_S = 600.0
"""After so long without another death a suspect has passed, or is gone."""

MAX_JUDGED = 32
MAX_CONVICTED = 1024

OUTSIDE_SIGNALS = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})
"""No crash raises these: somebody sent them."""

OTHER_CAUSES = frozenset({EXIT_OK, EXIT_DEVICE_LOST, EXIT_TEMPORARY, EXIT_CONFIG})


class Report(msgspec.Struct, frozen=True):
    """One death.  counts: see `counts`.  num_sequences: in the fatal step; 0 if none was under way.

    present: of those that can be named, by fingerprint, how many of their tokens the step would have left computed.
    """

    generation: int
    at_s: float
    counts: bool
    num_sequences: int = 0
    present: dict[str, int] = {}


class Judgement(NamedTuple):
    """The rulings from now on, and what is new in them."""

    rulings: Rulings
    suspected: frozenset[str]
    convicted: str | None


def counts(death: Death, verdict: Verdict | None) -> bool:
    """Whether a death may be the doing of what was computed.  verdict: the one that ended the process, if any."""
    if death.requested or death.standby:
        return False
    if death.oom:
        return True
    if verdict is not None and verdict.verdict == "hang":
        return not verdict.stopped
    if death.signal is not None:
        return death.signal not in OUTSIDE_SIGNALS
    return death.code not in OTHER_CAUSES


def judge(before: Rulings, report: Report) -> Judgement:
    """Take one more death into account."""
    now_s = report.at_s
    judged = (*before.judged, report.generation)[-MAX_JUDGED:]
    convicted = {name: until_s for name, until_s in before.convicted.items() if until_s > now_s}
    suspects = {name: suspect for name, suspect in before.suspects.items() if now_s - suspect.at_s < TRIAL_S}
    last = before.last if before.last is not None and now_s - before.last.at_s < QUARANTINE_S else None
    if not report.counts:
        suspects = _without_passed(suspects, report)
        return Judgement(Rulings(judged, suspects, convicted, last), frozenset(), None)

    repeated = {name: last.present[name] for name in report.present if last is not None and name in last.present}
    culprit = next(iter(report.present)) if report.num_sequences == 1 and report.present else None
    if culprit is not None and (culprit in suspects or culprit in repeated):
        suspects.pop(culprit, None)
        convicted[culprit] = now_s + QUARANTINE_S
        rulings = Rulings(judged, suspects, _bounded(convicted), Sighting(now_s, {}))
        return Judgement(rulings, frozenset(), culprit)

    suspects = _without_passed(suspects, report)
    for name, before_tokens in repeated.items():
        suspects[name] = Suspect(max(before_tokens, report.present[name]) + 1, now_s)
    rulings = Rulings(judged, suspects, convicted, Sighting(now_s, report.present))
    return Judgement(rulings, frozenset(repeated), None)


def _without_passed(suspects: dict[str, Suspect], report: Report) -> dict[str, Suspect]:
    """Those that are not known to have got past what they were suspected of: to be in company further on proves it."""
    in_company = report.present if report.num_sequences > 1 else {}
    return {name: each for name, each in suspects.items() if in_company.get(name, 0) <= each.alone_until}


def _bounded(convicted: dict[str, float]) -> dict[str, float]:
    """At most MAX_CONVICTED, those that have longest to go."""
    return dict(sorted(convicted.items(), key=lambda each: each[1])[-MAX_CONVICTED:])
