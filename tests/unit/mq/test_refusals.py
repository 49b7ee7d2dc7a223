"""Tests of aphrodited.mq.refusals."""

from __future__ import annotations

import pytest
import structlog

from aphrodited.mq.refusals import LOG_INTERVAL_S, Refusals


def test_everything_is_counted_and_little_is_logged() -> None:
    now_s = 0.0
    refusals = Refusals(clock=lambda: now_s)
    with structlog.testing.capture_logs() as logs:
        for _ in range(1000):
            refusals.count("bad_frame", reason="garbage")
        refusals.count("unknown_client")
        now_s = LOG_INTERVAL_S
        refusals.count("bad_frame", reason="garbage")
    assert refusals.counts == {"bad_frame": 1001, "unknown_client": 1}
    assert [(line["kind"], line["num_refused"]) for line in logs] == [
        ("bad_frame", 1),
        ("unknown_client", 1),
        ("bad_frame", 1001),
    ]


@pytest.mark.parametrize("kind", ["bad_frame", "unknown_abort"])
def test_the_first_of_a_kind_is_logged_at_once(kind: str) -> None:
    with structlog.testing.capture_logs() as logs:
        Refusals().count(kind)
    assert len(logs) == 1
