"""The judge over ledger entries and flight records that the test writes: rulings, what the ledger is told, and restarts."""

import os

import pytest

from aphrodited.flight import UNKNOWN, FlightRecorder, flight_path
from aphrodited.health.judgement import QUARANTINE_S
from aphrodited.health.quarantine import Quarantine
from aphrodited.paths import engine_program
from aphrodited.rulings import read_rulings
from aphrodited.supervision.ledger import Conviction, Death, Reset, Trial, Verdict, boottime_s, stamp

ENGINE, STANDBY, OTHER = engine_program("demo", 0), engine_program("demo", 1), engine_program("other", 0)
A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


class Stage:
    def __init__(self, paths):
        self.paths = paths
        self.entries = []
        self.written = []
        self.num_lives = 0
        self.judge = self.new_judge()

    def new_judge(self):
        judge = Quarantine({ENGINE: "demo", STANDBY: "demo", OTHER: "other"}, self.paths, self.write)
        judge.begin(list(self.entries))
        return judge

    def write(self, entry):
        self.written.append(entry)
        self.entries.append(entry)

    def end(self, *present, program=ENGINE, **fields):
        """An engine dies in a step of these requests; returns the entry, which nobody has judged yet."""
        self.num_lives += 1
        pid = 5_000_000 + self.num_lives  # above every pid that there is
        recorder = FlightRecorder(self.paths.flights_dir, program, self.num_lives, 8)
        recorder.begin(list(present), [10] * len(present))
        recorder.close()
        os.rename(flight_path(self.paths.flights_dir, program, os.getpid()), self.flight(pid, program))
        death = {"signal": "SIGABRT", "generation": self.num_lives, "cause": "killed by SIGABRT", "model": "demo"}
        entry = Death(**{**stamp(program), "pid": pid, "uptime_s": 1.0, **death, **fields})
        self.entries.append(entry)
        return entry

    def die(self, *present, **fields):
        self.tell(self.end(*present, **fields))

    def tell(self, *news):
        self.judge.take(news, self.entries)

    def flight(self, pid, program=ENGINE):
        return flight_path(self.paths.flights_dir, program, pid)

    def rulings(self, model="demo"):
        return read_rulings(self.paths.model(model).rulings)


@pytest.fixture
def stage(paths):
    return Stage(paths)


def test_a_request_is_suspected_then_convicted_and_the_ledger_is_told(stage):
    stage.die(A, B)
    assert (stage.rulings().judged, stage.written) == ((1,), [])
    stage.die(A, B)
    assert set(stage.rulings().suspects) == {A.hex(), B.hex()}
    (trial,) = stage.written
    assert isinstance(trial, Trial)
    assert (trial.program, trial.model, trial.num_suspects) == (ENGINE, "demo", 2)
    stage.die(B)
    assert list(stage.rulings().convicted) == [B.hex()]
    conviction = stage.written[1]
    assert isinstance(conviction, Conviction)
    assert (conviction.fingerprint, conviction.model, conviction.cause) == (B.hex(), "demo", "killed by SIGABRT")
    assert list(stage.paths.flights_dir.iterdir()) == []


def test_engines_of_one_model_are_judged_together_and_those_of_another_apart(stage):
    stage.die(A)
    stage.die(A, program=OTHER)
    stage.die(A, program=STANDBY)
    assert list(stage.rulings().convicted) == [A.hex()]
    assert stage.rulings("other").convicted == {}


def test_requests_without_a_name_are_company_and_nothing_else(stage):
    for _ in range(3):
        stage.die(UNKNOWN)
    assert (stage.rulings().suspects, stage.rulings().convicted) == ({}, {})
    stage.die(A, UNKNOWN)
    stage.die(A, UNKNOWN)
    assert list(stage.rulings().suspects) == [A.hex()]


def test_a_death_by_verdict_counts_and_one_by_an_outsider_does_not(stage):
    def kill(with_verdict):
        death = stage.end(A, signal="SIGKILL")
        if with_verdict:
            hang = {"verdict": "hang", "action": "kill", "reason": "no progress"}
            stage.entries.insert(-1, Verdict(**stamp(ENGINE), pid=death.pid, **hang))
        stage.tell(death)

    for _ in range(12):
        kill(with_verdict=False)
    assert (stage.rulings().suspects, stage.rulings().convicted) == ({}, {})
    assert len(stage.rulings().judged) == 12
    kill(with_verdict=True)
    kill(with_verdict=True)
    assert list(stage.rulings().convicted) == [A.hex()]


def test_a_death_without_a_record_is_judged_too_so_that_nobody_waits(stage):
    stage.tell(Death(**stamp(ENGINE), pid=9, uptime_s=1.0, signal="SIGKILL", generation=4, model="demo"))
    stage.tell(Death(**stamp(STANDBY), pid=8, uptime_s=1.0, signal="SIGKILL", standby=True, model="demo"))
    assert stage.rulings().judged == (4,)


def test_a_record_of_another_process_with_the_same_number_is_left_alone(stage):
    death = stage.end(A, generation=77)
    stage.tell(death)
    assert stage.flight(death.pid).exists()
    assert stage.rulings() is None


def test_the_next_monitor_goes_on_where_the_last_one_was(stage):
    stage.die(A, B)
    stage.die(A, B)
    stage.end(B)  # nobody is there to judge it
    stage.judge = stage.new_judge()
    assert list(stage.rulings().convicted) == [B.hex()]
    assert list(stage.rulings().suspects) == [A.hex()]
    assert len([entry for entry in stage.entries if isinstance(entry, Conviction)]) == 1
    stage.judge = stage.new_judge()
    assert stage.rulings().judged == (1, 2, 3)
    assert len([entry for entry in stage.entries if isinstance(entry, Conviction)]) == 1


def test_a_conviction_outlives_the_daemon(stage):
    stage.die(A)
    stage.die(A)
    until_s = stage.rulings().convicted[A.hex()]
    stage.paths.model("demo").rulings.unlink()
    stage.judge = stage.new_judge()
    assert stage.rulings().convicted == {A.hex(): pytest.approx(until_s, abs=1)}


def test_a_conviction_of_long_ago_or_of_another_boot_does_not(stage):
    conviction = {"pid": 1, "fingerprint": A.hex(), "cause": "", "model": "demo"}
    stage.entries.append(Conviction(**{**stamp(ENGINE), "boot_id": "another"}, **conviction))
    stage.entries.append(Conviction(**{**stamp(ENGINE), "at_s": boottime_s() - QUARANTINE_S - 1}, **conviction))
    stage.judge = stage.new_judge()
    assert stage.rulings() is None


def test_a_reset_lifts_it(stage):
    stage.die(A)
    stage.die(A)
    reset = Reset(**stamp(STANDBY))
    stage.entries.append(reset)
    stage.tell(reset)
    assert (stage.rulings().convicted, stage.rulings().judged) == ({}, (1, 2))
    stage.paths.model("demo").rulings.unlink()
    stage.judge = stage.new_judge()
    assert stage.rulings() is None  # the ledger has the reset too
    stage.tell(Reset(**stamp("api-0")))


def test_a_full_disk_stops_no_judgement(stage):
    stage.die(A)
    folder = stage.paths.model("demo").folder
    stage.paths.model("demo").rulings.unlink()
    folder.rmdir()
    folder.write_text("")
    stage.die(A)
    assert isinstance(stage.written[0], Conviction)
    folder.unlink()
    stage.die(B)
    assert list(stage.rulings().convicted) == [A.hex()]
