"""Log files: merged by time, rotated under the reader's eyes, raw lines kept in place."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aphrodited.cli.log_files import LogFile, LogFilter, LogFolder, LogLine


def event(second: int, name: str = "thing_happened", **fields: object) -> str:
    return json.dumps({"time": f"2026-01-01T00:00:{second:02}.000000Z", "level": "info", "event": name, **fields}) + "\n"


def texts(lines: list[LogLine]) -> list[str]:
    return [str(line.fields["event"]) if line.fields else line.text for line in lines]


def history(folder: Path, programs: set[str] | None = None) -> list[LogLine]:
    with LogFolder(folder, programs) as logs:
        return list(logs.history())


def test_files_are_merged_by_time(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(event(1, "a1") + event(4, "a4"))
    (tmp_path / "b.log").write_text(event(2, "b2") + event(3, "b3") + event(5, "b5"))
    assert texts(history(tmp_path)) == ["a1", "b2", "b3", "a4", "b5"]


def test_lines_without_a_time_stay_behind_their_event(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("raw start\n" + event(1, "a1") + "Fatal Python error\n  stack\n" + event(4, "a4"))
    (tmp_path / "b.log").write_text(event(2, "b2"))
    lines = history(tmp_path)
    assert texts(lines) == ["raw start", "a1", "Fatal Python error", "  stack", "b2", "a4"]


def test_the_supervisors_own_lines_take_their_place_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    (tmp_path / "supervisor.log").write_text("2026-01-01 02:00:03,123 INFO spawned: 'api-0' with pid 7\n")
    (tmp_path / "a.log").write_text(event(2, "a2") + event(4, "a4"))
    lines = history(tmp_path)
    monkeypatch.undo()
    time.tzset()
    assert [line.program for line in lines] == ["a", "supervisor", "a"]


def test_rotated_files_come_first_the_oldest_before_the_newer(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        (tmp_path / f"a.log.{number}").write_text(event(20 - number, f"old{number}"))
    (tmp_path / "a.log.gz").write_text("not ours\n")
    (tmp_path / "a.log").write_text(event(30, "new"))
    assert texts(history(tmp_path)) == ["old10", "old2", "old1", "new"]


def test_only_the_named_programs_are_read(tmp_path: Path) -> None:
    for name in ("api-0", "api-1", "monitor"):
        (tmp_path / f"{name}.log").write_text(event(1, name))
    assert texts(history(tmp_path, {"api-1"})) == ["api-1"]
    assert history(tmp_path / "missing") == []


def test_appended_lines_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(event(1, "one"))
    file = LogFile(path)
    assert texts(list(file.history())) == ["one"]
    whole = event(2, "two")
    with path.open("a") as writer:
        writer.write(whole[:20])
        writer.flush()
        assert file.appended() == []
        writer.write(whole[20:])
    assert texts(file.appended()) == ["two"]
    assert file.appended() == []
    file.close()


def test_rotation_loses_and_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(event(1, "one"))
    file = LogFile(path)
    list(file.history())
    with path.open("a") as writer:
        writer.write(event(2, "two"))
    os.rename(path, tmp_path / "a.log.1")
    assert texts(file.appended()) == ["two"]
    path.write_text(event(3, "three"))
    assert texts(file.appended()) == ["three"]
    file.close()


def test_a_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(event(1, "one") * 3)
    file = LogFile(path)
    list(file.history())
    path.write_text(event(2, "two"))
    assert texts(file.appended()) == ["two"]
    file.close()


def test_a_file_that_appears_later_is_followed(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a.log")
    assert list(file.history()) == []
    assert file.appended() == []
    file.path.write_text(event(1, "one"))
    assert texts(file.appended()) == ["one"]
    file.close()


@pytest.mark.parametrize("text", ["{", "{}", '{"event": 1}', "[1]", '{"event": "e", "time": 3}', "\x00\xff", ""])
def test_any_line_can_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.log").write_text(text + "\n")
    (line,) = history(tmp_path)
    assert line.text == text


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"x" * 1_000_000)
    lines = history(tmp_path)
    assert all(len(line.text) <= 128 * 1024 for line in lines)
    assert len(lines) > 1


def line_of(**fields: object) -> LogLine:
    return LogLine(datetime(2026, 1, 1, 12, tzinfo=UTC), "api-0", "", {"event": "e", **fields})


RAW = LogLine(datetime(2026, 1, 1, 12, tzinfo=UTC), "api-0", "raw", None)


@pytest.mark.parametrize(
    ("wanted", "line", "passes"),
    [
        (LogFilter(), line_of(level="debug"), True),
        (LogFilter(level="warning"), line_of(level="info"), False),
        (LogFilter(level="warning"), line_of(level="critical"), True),
        (LogFilter(level="warning"), line_of(level="unheard-of"), True),
        (LogFilter(level="error"), RAW, True),
        (LogFilter(request_id="r"), RAW, False),
        (LogFilter(request_id="r"), line_of(request_id="r"), True),
        (LogFilter(request_id="r"), line_of(request_id="s"), False),
        (LogFilter(since=datetime(2026, 1, 1, 13, tzinfo=UTC)), line_of(), False),
        (LogFilter(since=datetime(2026, 1, 1, 12, tzinfo=UTC)), line_of(), True),
    ],
)
def test_filter(wanted: LogFilter, line: LogLine, passes: bool) -> None:
    assert wanted.passes(line) is passes
