import os

import pytest

from aphrodited.paths import DaemonPaths
from aphrodited.supervision.desired import (
    Desired,
    DesiredWatch,
    read_desired,
    restore_desired,
    unloaded_models,
    write_desired,
)


@pytest.fixture
def paths(tmp_path):
    return DaemonPaths(tmp_path / "run", tmp_path / "log", tmp_path / "state")


def test_a_model_is_wanted_until_somebody_says_otherwise(paths):
    assert read_desired(paths.model("m")) is Desired.SERVED
    for desired in (*Desired, Desired.SERVED, Desired.STOPPED):
        write_desired(paths, "m", desired)
        assert read_desired(paths.model("m")) is desired
        assert read_desired(paths.model("n")) is Desired.SERVED
    assert [path.name for path in paths.model("m").folder.iterdir()] == ["desired"]
    assert list(paths.kept_desired("m").parent.iterdir()) == []


@pytest.mark.parametrize("text", ["", "nonsense"])
def test_a_damaged_file_stops_nothing(paths, text):
    write_desired(paths, "m", Desired.UNLOADED)
    paths.model("m").desired.write_text(text)
    paths.kept_desired("m").write_text(text)
    restore_desired(paths, ["m"])
    assert read_desired(paths.model("m")) is Desired.SERVED


@pytest.mark.parametrize(
    ("told", "restored"),
    [
        (Desired.UNLOADED, Desired.UNLOADED),
        (Desired.DRAINED, Desired.DRAINED),
        (Desired.STOPPED, Desired.SERVED),
        (Desired.SERVED, Desired.SERVED),
    ],
)
def test_the_next_daemon_restores_what_is_meant_to_last(paths, told, restored):
    write_desired(paths, "m", Desired.UNLOADED)
    write_desired(paths, "m", told)
    paths.model("m").desired.unlink()  # as the daemon's end does
    restore_desired(paths, ["m", "n"])
    assert read_desired(paths.model("m")) is restored
    assert unloaded_models(paths, ["m", "n"]) == ({"m"} if restored is Desired.UNLOADED else set())


def test_a_full_disk_leaves_what_was_wanted(paths, monkeypatch):
    def refuse(*_):
        raise OSError("no space")

    write_desired(paths, "m", Desired.SERVED)
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no space"):
        write_desired(paths, "m", Desired.UNLOADED)
    assert read_desired(paths.model("m")) is Desired.SERVED


def test_a_watch_sees_every_change_and_reads_only_then(paths, monkeypatch):
    watch = DesiredWatch(paths.model("m"))
    assert watch() is Desired.SERVED
    for desired in (Desired.DRAINED, Desired.UNLOADED, Desired.SERVED, Desired.DRAINED):
        write_desired(paths, "m", desired)
        assert watch() is desired
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_text", None)  # it would raise
        assert watch() is Desired.DRAINED
    paths.model("m").desired.unlink()
    assert watch() is Desired.SERVED
