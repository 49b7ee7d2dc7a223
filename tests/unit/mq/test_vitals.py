"""Tests of aphrodited.mq.vitals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import zmq

from aphrodited.config.schema import ModelConfig
from aphrodited.engine.aphrodite_engine import AphroditeEngine
from aphrodited.engine.null_backend import create_null_backend
from aphrodited.flight import UNKNOWN, FlightRecorder, flight_path, read_flight
from aphrodited.interfaces import StepPlan
from aphrodited.mq.pace import StepPace
from aphrodited.mq.vitals import Vitals
from aphrodited.page import Page, PageWriter, Phase, read_page
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import SamplingParams


class Rig:
    def __init__(self, path: Path, health: zmq.Socket[bytes]) -> None:
        self.now_s = 100.0
        self.path = path
        self.page = PageWriter(path)
        self.backend: AphroditeEngine = create_null_backend(ModelConfig("m", "nowhere", backend="null"))
        self.flight = FlightRecorder(path.parent / "flights", "p", 7, 8)
        self.vitals = Vitals(
            self.backend,
            self.page,
            7,
            health,
            pace=StepPace(30.0),
            heartbeat_s=2.0,
            stats_log_s=60.0,
            flight=self.flight,
            clock=lambda: self.now_s,
        )

    def computed(self) -> tuple[tuple[bytes, int], ...]:
        record = read_flight(flight_path(self.path.parent / "flights", "p", os.getpid()))
        assert record is not None
        return record.sequences

    def read(self) -> Page:
        page = read_page(self.path)
        assert page is not None
        return page


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PUB) as health:
        rig = Rig(tmp_path / "page", health)
        yield rig
        rig.flight.close()
        rig.page.close()
        rig.backend.close()


def test_an_idle_engine_is_ready_without_work(rig: Rig) -> None:
    rig.vitals.write_page()
    page = rig.read()
    assert (page.phase, page.generation, page.has_work, page.allowance_s) == (Phase.READY, 7, False, 0.0)


def test_a_step_is_announced_before_it_computes(rig: Rig) -> None:
    assert rig.backend.on_plan is not None
    assert rig.backend.on_progress is not None
    rig.backend.on_plan(StepPlan(100_000, 3))
    page = rig.read()
    assert (page.phase, page.has_work) == (Phase.STEPPING, True)
    assert page.allowance_s > 30
    rig.backend.on_progress()
    assert rig.read().num_ticks == page.num_ticks + 1
    rig.vitals.step_ended()
    assert rig.read().phase is Phase.READY


def test_a_first_finished_request_is_on_the_page(rig: Rig) -> None:
    rig.backend.add_request(1, GenerateRequest("r", [1], SamplingParams(max_tokens=1)))
    rig.vitals.write_page()
    assert (rig.read().has_work, rig.read().num_finished) == (True, 0)
    rig.backend.step()
    rig.vitals.step_ended()
    assert (rig.read().has_work, rig.read().num_finished, rig.read().num_steps) == (False, 1, 1)


def test_a_leaving_engine_is_draining_within_steps_too(rig: Rig) -> None:
    rig.vitals.write_draining()
    assert rig.read().phase is Phase.DRAINING
    assert rig.backend.on_plan is not None
    rig.backend.on_plan(StepPlan(1, 1))
    assert rig.read().phase is Phase.DRAINING


def test_the_cause_of_a_failure_is_on_the_page(rig: Rig) -> None:
    rig.vitals.write_failure("DrillError: on request")
    assert (rig.read().phase, rig.read().message) == (Phase.FAILED, "DrillError: on request")


def test_an_idle_loop_sleeps_until_the_next_sign_of_life(rig: Rig) -> None:
    assert rig.vitals.seconds_to_next() == 0
    rig.vitals.publish_if_due()
    assert rig.vitals.seconds_to_next() == 1.0
    rig.now_s += 1.5
    assert rig.vitals.seconds_to_next() == 0.5


def test_statistics_are_logged_while_it_works_only(rig: Rig) -> None:
    with structlog.testing.capture_logs() as logs:
        rig.now_s += 61
        rig.vitals.publish_if_due()
        assert logs == []
        rig.backend.add_request(1, GenerateRequest("r", [1], SamplingParams(max_tokens=1)))
        rig.backend.step()
        rig.vitals.publish_if_due()
        assert logs == []
        rig.now_s += 61
        rig.vitals.publish_if_due()
        rig.now_s += 61
        rig.vitals.publish_if_due()
    assert [line["event"] for line in logs] == ["stats_reported"]


def test_the_flight_record_names_a_request_while_it_is_taken_in_and_while_a_step_computes_it(rig: Rig) -> None:
    request = GenerateRequest("r", [1, 2], SamplingParams(max_tokens=2), fingerprint=b"f" * 16)
    rig.vitals.request_comes(request)
    assert rig.computed() == ((b"f" * 16, 2),)
    rig.backend.add_request(1, request)
    rig.vitals.request_taken()
    assert rig.computed() == ()
    rig.backend.add_request(2, GenerateRequest("r", [1], SamplingParams(max_tokens=2)))
    seen: list[tuple[tuple[bytes, int], ...]] = []
    rig.backend.on_progress = lambda: seen.append(rig.computed())
    for _ in range(2):
        rig.backend.step()
        rig.vitals.step_ended()
    assert seen[0] == ((b"f" * 16, 2), (UNKNOWN, 1))
    assert seen[-1] == ((b"f" * 16, 3), (UNKNOWN, 2))
    assert rig.computed() == ()


def test_a_step_that_fails_leaves_its_requests_on_record(rig: Rig) -> None:
    rig.backend.add_request(1, GenerateRequest("r", [131071, 131071, 1], SamplingParams(), fingerprint=b"f" * 16))
    with pytest.raises(RuntimeError, match="drill"):
        rig.backend.step()
    assert rig.computed() == ((b"f" * 16, 3),)
