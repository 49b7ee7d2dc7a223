"""Pauses in streams, and percentiles."""

from __future__ import annotations

import pytest

from aphrodited.bench.pauses import percentiles_s, resumed_after_s


def test_a_death_is_over_with_the_first_token_after_the_longest_pause() -> None:
    assert resumed_after_s(10.0, [9.8, 9.9, 10.01, 10.5, 10.6]) == pytest.approx(0.5)


def test_a_later_pause_is_not_this_deaths() -> None:
    assert resumed_after_s(10.0, [9.9, 10.1, 10.2, 10.3, 10.4, 14.0]) == pytest.approx(0.1)


@pytest.mark.parametrize("times_s", [[], [8.0, 9.0], [11.0, 12.0], [9.0, 10.1]])
def test_a_stream_that_did_not_flow_then_says_nothing(times_s: list[float]) -> None:
    assert resumed_after_s(10.0, times_s) is None


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentiles_s([3.0, 1.0, 2.0, 4.0]) == {"p50": 2.0, "p90": 4.0, "p99": 4.0, "max": 4.0}
    assert percentiles_s([]) == {}
