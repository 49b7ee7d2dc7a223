"""A request that ends engines is found and refused, and those beside it finish; kills from outside convict nobody."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from aphrodited.flight import flight_path, read_flight
from aphrodited.paths import MONITOR_PROGRAM, engine_program
from aphrodited.rulings import read_rulings
from aphrodited.supervision.ledger import Conviction, Death, LedgerEntry, Reset, Trial, stamp
from tests.support.daemons import Daemon, wait_until
from tests.support.real_daemon import RealDaemon, Stream

ENGINE = engine_program("tiny", 0)
POISON = 77  # a token
POISON_AFTER = 6
NUM_OTHERS = 8

pytestmark = pytest.mark.timeout(180)


@contextmanager
def poisonable(standby: int = 0, step_s: float = 0.01, recovery: str = "max_strikes: 3") -> Iterator[RealDaemon]:
    daemon = RealDaemon(on_death="resume", step_s=step_s, standby=standby, recovery=recovery)
    config = daemon.folder / "models" / "tiny" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "poison_token": POISON, "poison_after": POISON_AFTER}))
    try:
        daemon.start()
        daemon.wait_serving()
        yield daemon
    finally:
        daemon.close()


def prompt_of(number: int) -> list[int]:
    return [5 + number, 20 + number, 40 + number, 60 + number]


def poison(**fields: Any) -> dict[str, Any]:
    return {"prompt": [8, POISON, 9], "max_tokens": 400, "ignore_eos": True, **fields}


def ask(daemon: RealDaemon, number: int) -> tuple[int, Any]:
    return daemon.complete(prompt_of(number), max_tokens=250, ignore_eos=True)


def entries(daemon: Daemon, kind: type[LedgerEntry]) -> list[Any]:
    return [entry for entry in daemon.ledger.read() if isinstance(entry, kind)]


def texts(answers: Iterable[tuple[int, Any]]) -> list[str]:
    told = list(answers)
    assert [status for status, _ in told] == [200] * len(told), told
    return [str(answer["choices"][0]["text"]) for _, answer in told]


@pytest.mark.parametrize("standby", [0, 1])
def test_poison_beside_others_is_refused_and_the_others_finish(standby: int) -> None:
    """The engine has finished nothing before, so each of its deaths is a strike: it must not be parked for them."""
    with poisonable(standby) as daemon, ThreadPoolExecutor(NUM_OTHERS) as pool:
        others = [pool.submit(ask, daemon, number) for number in range(NUM_OTHERS)]
        wait_until(lambda: len(computed(daemon)) == NUM_OTHERS, what="all others in one batch")
        stream = daemon.open_stream(**poison())
        stream.wait(90)
        answers = [other.result(120) for other in others]
        assert stream.error is not None
        assert (stream.error["code"], stream.is_done) == ("REQUEST_QUARANTINED", True)
        assert 0 < stream.num_events <= POISON_AFTER
        assert texts(answers) == texts(pool.map(lambda number: ask(daemon, number), range(NUM_OTHERS)))
        assert_is_refused_at_once(daemon)
        assert_is_told(daemon)
        assert len(list(daemon.paths.flights_dir.iterdir())) == 1  # that of the living engine


def computed(daemon: RealDaemon) -> set[str]:
    """Whom the flight records name now: a look at the living, which is only as good as its instant."""
    names: set[str] = set()
    for path in daemon.paths.flights_dir.glob("*"):
        record = read_flight(path)
        names |= {name.hex() for name, _ in record.sequences} if record is not None else set()
    return names


def assert_is_refused_at_once(daemon: RealDaemon) -> None:
    num_deaths = len(counted(daemon))
    for fields in ({}, {"request_id": "another"}):
        began_at_s = time.monotonic()
        status, answer = daemon.complete(**poison(**fields))
        assert (status, answer["error"]["code"]) == (422, "REQUEST_QUARANTINED")
        assert time.monotonic() - began_at_s < 5
    assert daemon.complete([8, POISON - 1, 9])[0] == 200
    assert len(counted(daemon)) == num_deaths


def counted(daemon: RealDaemon) -> list[Death]:
    return [death for death in daemon.deaths(ENGINE[:-1]) if death.signal == "SIGABRT"]


def assert_is_told(daemon: RealDaemon) -> None:
    assert len(counted(daemon)) == 3
    (trial,), (conviction,) = entries(daemon, Trial), entries(daemon, Conviction)
    assert 2 <= trial.num_suspects <= NUM_OTHERS + 1  # those that had come to the second engine by then
    assert conviction.fingerprint in daemon.log("api-0") + daemon.log("api-1")
    assert "aphrodited_quarantined_requests_total" in daemon.ask("/metrics")


def test_a_lone_request_is_found_too_and_a_reset_lifts_its_quarantine() -> None:
    with poisonable() as daemon:
        status, answer = daemon.complete(**poison())
        assert (status, answer["error"]["code"]) == (422, "REQUEST_QUARANTINED")
        assert len(counted(daemon)) == 2
        daemon.wait_serving()
        assert daemon.complete(**poison())[0] == 422
        daemon.ledger.append(Reset(**stamp(ENGINE)))
        rulings = daemon.paths.model("tiny").rulings
        wait_until(lambda: (known := read_rulings(rulings)) is not None and not known.convicted, what="the reset")
        assert daemon.complete(**poison())[0] == 422  # found once more
        assert len(counted(daemon)) == 4


def test_who_is_killed_from_outside_is_not_convicted() -> None:
    """Something is finished in each life, so that the next one begins at once."""
    with poisonable(step_s=0.02) as daemon, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, daemon, number) for number in range(3)]
        for _ in range(12):
            assert daemon.complete(max_tokens=1)[0] == 200
            pid = daemon.pid(ENGINE)
            wait_until(lambda pid=pid: is_computing(daemon, pid), 60, what="work in the engine")
            os.kill(pid, signal.SIGKILL)
            daemon.pid(ENGINE, other_than=pid)
        answers = [future.result(120) for future in asked]
        assert texts(answers) == texts(pool.map(lambda number: ask(daemon, number), range(3)))
        assert len(daemon.deaths(ENGINE)) == 12
        assert entries(daemon, Trial) == entries(daemon, Conviction) == []
        rulings = read_rulings(daemon.paths.model("tiny").rulings)
        assert rulings is not None
        assert (rulings.suspects, rulings.convicted, rulings.last) == ({}, {}, None)


def is_computing(daemon: RealDaemon, pid: int) -> bool:
    record = read_flight(flight_path(daemon.paths.flights_dir, ENGINE, pid))
    return record is not None and record.num_sequences > 0


def test_requests_go_on_without_a_monitor_and_the_next_one_judges_what_it_missed() -> None:
    with poisonable(step_s=0.02) as daemon:
        stream = daemon.open_stream(prompt_of(1), max_tokens=200)
        wait_until(lambda: stream.num_events > 3, what="the stream")
        daemon.client.stop(MONITOR_PROGRAM)
        kill_computing(daemon)
        wait_for_more(stream)
        kill_computing(daemon)
        stream.wait(60)
        assert (stream.error, stream.is_done) == (None, True)
        assert read_rulings(daemon.paths.model("tiny").rulings) is None
        daemon.client.start(MONITOR_PROGRAM)
        rulings = daemon.paths.model("tiny").rulings
        wait_until(lambda: (known := read_rulings(rulings)) is not None and known.judged == (1, 2), what="the judgement")


def kill_computing(daemon: RealDaemon) -> None:
    pid = daemon.pid(ENGINE)
    wait_until(lambda: is_computing(daemon, pid), 30, what="work in the engine")
    os.kill(pid, signal.SIGKILL)
    daemon.pid(ENGINE, other_than=pid)


def wait_for_more(stream: Stream) -> None:
    num_tokens = stream.num_events
    wait_until(lambda: stream.num_events > num_tokens + 2, 30, what="the stream to go on")
