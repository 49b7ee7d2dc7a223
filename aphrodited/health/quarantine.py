"""Quarantine: judges each engine's death by its flight record, publishes the rulings and writes them into the ledger.

    the ledger tells a death ──▶ flight record of that process ──▶ judgement ──▶ rulings of the model, for API workers
                                                                            └──▶ Trial or Conviction in the ledger

A flight record is removed once it was judged: those that are there when the monitor starts belong to deaths that nobody
has judged, or to the living. A conviction outlives the daemon through the ledger. Decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from aphrodited.flight import UNKNOWN, FlightRecord, flight_path, read_flight
from aphrodited.health.judgement import QUARANTINE_S, Report, counts, judge
from aphrodited.log import get_logger
from aphrodited.paths import DaemonPaths
from aphrodited.rulings import Rulings, read_rulings, write_rulings
from aphrodited.supervision.deaths import last_verdict
from aphrodited.supervision.ledger import (
    Conviction,
    Death,
    LedgerEntry,
    Reset,
    Trial,
    boot_id,
    boottime_s,
    stamp,
)

log = get_logger()


class Quarantine:
    """The judge of every model.  models: by the names of their engines' programs.  append: writes to the ledger."""

    def __init__(
        self, models: Mapping[str, str], paths: DaemonPaths, append: Callable[[LedgerEntry], None]
    ) -> None:
        self._models = models
        self._paths = paths
        self._append = append
        self._rulings: dict[str, Rulings] = {}

    def begin(self, entries: list[LedgerEntry]) -> None:
        """Take up what an earlier monitor knew, and judge what has happened since.  entries: the ledger's."""
        for model in set(self._models.values()):
            known = read_rulings(self._paths.model(model).rulings)
            self._rulings[model] = known if known is not None else Rulings(convicted=self._convicted(model, entries))
            if known is None and self._rulings[model].convicted:
                self._publish(model)
        self.take(entries, entries, only_recorded=True)

    def take(
        self, news: Iterable[LedgerEntry], entries: list[LedgerEntry], *, only_recorded: bool = False
    ) -> None:
        """Judge what was added to the ledger.  only_recorded: deaths without a flight record were judged before."""
        for entry in news:
            if isinstance(entry, Reset):
                if not only_recorded:
                    self._release(entry)
            elif isinstance(entry, Death) and entry.program in self._models:
                self._examine(entry, entries, only_recorded)

    def _examine(self, death: Death, entries: list[LedgerEntry], only_recorded: bool) -> None:
        path = flight_path(self._paths.flights_dir, death.program, death.pid)
        record = read_flight(path)
        if record is None and only_recorded:
            return
        if record is not None and death.generation not in (0, record.generation):
            return  # the record of another process, that has the same number
        generation = record.generation if record is not None else death.generation
        model = self._models[death.program]
        if generation and generation not in self._rulings[model].judged:
            self._judge(model, death, _report(death, generation, record, entries))
        path.unlink(missing_ok=True)

    def _judge(self, model: str, death: Death, report: Report) -> None:
        self._rulings[model], suspected, convicted = judge(self._rulings[model], report)
        self._publish(model)  # first: requests wait for it
        fields = {"model": model, "generation": report.generation, "process": death.program, "process_pid": death.pid}
        if suspected:
            log.warning("requests_suspected", num_requests=len(suspected), **fields)
            self._append(Trial(**stamp(death.program), pid=death.pid, num_suspects=len(suspected), model=model))
        if convicted is not None:
            log.error("request_convicted", fingerprint=convicted, refused_for_s=QUARANTINE_S, **fields)
            self._append(
                Conviction(**stamp(death.program), pid=death.pid, fingerprint=convicted, cause=death.cause, model=model)
            )

    def _publish(self, model: str) -> None:
        try:
            write_rulings(self._paths.model(model).rulings, self._rulings[model])
        except OSError as error:  # requests go on without them; the next death tries again
            log.error("rulings_unwritten", model=model, reason=str(error))

    def _release(self, reset: Reset) -> None:
        """The operator starts anew with a model: so do its requests."""
        model = self._models.get(reset.program)
        if model is None:
            return
        known = self._rulings[model]
        if known.convicted or known.suspects:
            log.info("quarantine_lifted", model=model, num_convicted=len(known.convicted))
            self._rulings[model] = Rulings(judged=known.judged)
            self._publish(model)

    def _convicted(self, model: str, entries: list[LedgerEntry]) -> dict[str, float]:
        """Who is still refused, by the ledger of this boot."""
        convicted: dict[str, float] = {}
        now_s, this_boot = boottime_s(), boot_id()
        for entry in entries:
            if entry.boot_id != this_boot or self._models.get(entry.program) != model:
                continue
            if isinstance(entry, Reset):
                convicted.clear()
            elif isinstance(entry, Conviction) and entry.at_s + QUARANTINE_S > now_s:
                convicted[entry.fingerprint] = entry.at_s + QUARANTINE_S
        return convicted


def _report(death: Death, generation: int, record: FlightRecord | None, entries: list[LedgerEntry]) -> Report:
    is_counted = counts(death, last_verdict(entries, death.program, death.pid))
    if record is None:
        return Report(generation, death.at_s, is_counted)
    present: dict[str, int] = {}
    for fingerprint, num_tokens in record.sequences:
        if fingerprint != UNKNOWN:
            name = fingerprint.hex()
            present[name] = max(num_tokens, present.get(name, 0))
    return Report(generation, death.at_s, is_counted, record.num_sequences, present)
