import os

import pytest

from aphrodited.supervision import ledger as module
from aphrodited.supervision.ledger import MAX_SIZE, Death, Ledger, Reset, stamp


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "state" / "ledger.jsonl")


def death(program="api-0", **fields):
    return Death(**stamp(program), pid=1, uptime_s=1.0, **fields)


def test_a_missing_file_is_an_empty_ledger(ledger):
    assert ledger.read() == []
    assert ledger.changed_at_ns() == 0


def test_entries_come_back_in_the_order_they_were_written(ledger):
    entries = [death(code=1), Reset(**stamp("api-0"), by="test"), death(signal="SIGKILL", oom=True)]
    for entry in entries:
        ledger.append(entry)
    assert ledger.read() == entries
    assert ledger.path.stat().st_mode & 0o777 == 0o600


def test_unreadable_lines_are_skipped_and_counted(ledger):
    ledger.append(death())
    with ledger.path.open("ab") as file:
        file.write(b'garbage\n{"entry":"death"}\n\xff\xfe\n{"entry":"martian","program":"x"}\n')
    ledger.append(death(code=2))
    assert [entry.code for entry in ledger.read()] == [None, 2]
    assert ledger.num_unreadable == 4


def test_a_line_cut_short_spoils_itself_only(ledger):
    ledger.append(death(code=1))
    with ledger.path.open("ab") as file:
        file.write(b'{"entry":"death","pro')
    ledger.append(death(code=2))
    assert [entry.code for entry in ledger.read()] == [1, 2]
    assert ledger.num_unreadable == 1


def test_no_line_is_longer_than_one_write_may_be(ledger):
    ledger.append(death(cause='"\x01' * 50_000))
    assert max(map(len, ledger.path.read_bytes().splitlines())) < 4096
    assert ledger.read()[0].cause.startswith('"\x01')


def test_the_ledger_keeps_recent_entries_within_its_size(ledger):
    for number in range(2000):
        ledger.append(death(code=number, cause="x" * 900))
    size = ledger.path.stat().st_size + ledger.older_path.stat().st_size
    assert size <= MAX_SIZE + 4096
    codes = [entry.code for entry in ledger.read()]
    assert codes[-1] == 1999
    assert codes == list(range(codes[0], 2000))
    assert len(codes) > 400


def test_a_writer_that_still_has_the_renamed_file_loses_nothing(ledger, monkeypatch):
    monkeypatch.setattr(module, "MAX_SIZE", 1)
    ledger.append(death(code=1))
    assert not ledger.path.exists()
    assert [entry.code for entry in ledger.read()] == [1]


def test_a_full_disk_is_an_error_of_the_writer(ledger, monkeypatch):
    monkeypatch.setattr(os, "write", lambda fd, data: len(data) - 1)
    with pytest.raises(OSError, match="No space left"):
        ledger.append(death())
