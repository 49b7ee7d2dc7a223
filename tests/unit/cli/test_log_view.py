"""Log lines as people and programs see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aphrodited.cli.log_files import LogFilter, LogLine
from aphrodited.cli.log_view import as_json_line, parse_since, render_line, show_logs
from aphrodited.cli.target import UsageError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "age"),
    [("90s", timedelta(seconds=90)), ("10m", timedelta(minutes=10)), ("2h", timedelta(hours=2)), ("1d", timedelta(1))],
)
def test_since_takes_an_age(text: str, age: timedelta) -> None:
    assert parse_since(text, NOON) == NOON - age


@pytest.mark.parametrize("text", ["2026-01-01T12:00Z", "2026-01-01T12:00", "2026-01-01 13:00+01:00"])
def test_since_takes_a_time(text: str) -> None:
    assert parse_since(text) == NOON


@pytest.mark.parametrize("text", ["", "10", "yesterday", "-5m", "m"])
def test_since_refuses_anything_else(text: str) -> None:
    with pytest.raises(UsageError, match="expected an age"):
        parse_since(text)


def event(**fields: object) -> LogLine:
    whole = {"time": NOON.isoformat(), "level": "warning", "event": "engine_died", **fields}
    return LogLine(NOON, "monitor", json.dumps(whole), whole)


def test_an_event_is_one_line_with_its_details() -> None:
    line = render_line(event(pid=7, process_pid=8, cause="out of memory", role="monitor", empty="", nothing=None), use_colour=False)
    assert line.endswith('monitor            warning  engine_died process_pid=8 cause="out of memory" empty=""')


def test_a_traceback_gets_lines_of_its_own() -> None:
    assert render_line(event(exception="a\nb"), use_colour=False).splitlines()[1:] == ["    a", "    b"]


def test_nothing_in_a_line_can_steer_the_terminal() -> None:
    raw = LogLine(NOON, "engine-0", "\x1b[2Jgone\x07", None)
    text = render_line(raw, use_colour=False) + render_line(event(cause="\x1b[2J"), use_colour=False)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "gone" in text


def test_colours_are_only_for_terminals() -> None:
    assert "\x1b[33m" in render_line(event(), use_colour=True)
    assert "\x1b" not in render_line(event(), use_colour=False)


def test_json_output_is_json_in_every_line() -> None:
    assert json.loads(as_json_line(event(pid=7)))["pid"] == 7
    raw = json.loads(as_json_line(LogLine(NOON, "engine-0", "Segmentation fault", None)))
    assert (raw["event"], raw["program"], raw["message"]) == ("line_printed", "engine-0", "Segmentation fault")


def test_only_the_last_lines_are_shown_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.log").write_text("".join(f"line {n}\n" for n in range(100)))
    assert show_logs(tmp_path, None, LogFilter(), as_json=False, follow=False, num_lines=2) == 0
    assert capsys.readouterr().out == "a | line 98\na | line 99\n"


def test_no_log_files_are_told_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_logs(tmp_path, None, LogFilter(), as_json=False, follow=False, num_lines=None) == 1
    assert "there are no log files" in capsys.readouterr().err


def test_following_shows_what_comes_from_new_files_too(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("first\n")
    code = (
        "import sys, pathlib\n"
        "from aphrodited.cli.log_files import LogFilter\n"
        "from aphrodited.cli.log_view import show_logs\n"
        "show_logs(pathlib.Path(sys.argv[1]), None, LogFilter(), as_json=False, follow=True, num_lines=None)"
    )
    reader = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"a | first\n"
        os.rename(tmp_path / "a.log", tmp_path / "a.log.1")
        (tmp_path / "a.log").write_text("second\n")
        assert reader.stdout.readline() == b"a | second\n"
        (tmp_path / "b.log").write_text(json.dumps({"time": NOON.isoformat(), "event": "third"}) + "\n")
        assert b"third" in reader.stdout.readline()
    finally:
        reader.terminate()
        reader.wait(10)
        reader.stdout.close()
