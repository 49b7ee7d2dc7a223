import os
import select

import pytest

from aphrodited.health.filewatch import FileWatch


@pytest.fixture
def watched(tmp_path):
    watch = FileWatch(tmp_path / "ledger")
    yield watch, tmp_path / "ledger"
    watch.close()


def is_readable(watch):
    return bool(select.select([watch], [], [], 0)[0])


def test_quiet_while_nothing_happens(watched):
    watch, _ = watched
    assert not is_readable(watch)
    assert not watch.changed()


def test_says_when_the_file_appears_and_grows_and_is_replaced(watched):
    watch, path = watched
    for write in (
        lambda: path.write_text("a"),
        lambda: path.write_text("ab"),
        lambda: os.replace(_made(path.with_name("new")), path),
    ):
        write()
        assert is_readable(watch)
        assert watch.changed()
        assert not is_readable(watch)


def test_other_files_in_the_folder_do_not_count(watched):
    watch, path = watched
    path.with_name("other").write_text("a")
    assert not watch.changed()


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OSError, match="inotify"):
        FileWatch(tmp_path / "missing" / "ledger")


def _made(path):
    path.write_text("c")
    return path
