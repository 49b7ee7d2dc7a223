"""Tables, durations and what may reach a terminal."""

from __future__ import annotations

import io

import pytest

from aphrodited.cli.terminal import duration, megabytes, painted, parse_time, printable, table, wants_colour


def test_a_table_aligns_its_columns_also_in_colour() -> None:
    plain = table(["A", "LONGER"], [["wide cell", "x"], ["y", ""]])
    assert plain == "A          LONGER\nwide cell  x\ny"
    assert "\x1b[31mwide cell\x1b[0m  x" in table(["A", "B"], [["wide cell", "x"]], colours=[["red", None]])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.04, "0.0s"), (9.96, "10.0s"), (12, "12s"), (303, "5m3s"), (7800, "2h10m"), (273600, "3d4h")],
)
def test_durations_have_two_units_at_most(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_memory_is_in_megabytes() -> None:
    assert (megabytes(None), megabytes(3 * 1024**2)) == ("-", "3M")


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[1m\r\n\udc80b\t\N{LATIN SMALL LETTER E WITH ACUTE}").count("\N{REPLACEMENT CHARACTER}") == 4


def test_a_file_gets_no_colours() -> None:
    assert not wants_colour(io.StringIO())
    assert painted("x", "red", use_colour=False) == "x"


def test_what_is_no_time_is_none() -> None:
    assert parse_time("tomorrow") is None
