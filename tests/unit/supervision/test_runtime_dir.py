import os
import subprocess

import pytest

from aphrodited.errors import ConfigError
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.runtime_dir import (
    DaemonRunningError,
    end_leftovers,
    prepare,
    take_lock,
)


@pytest.fixture
def paths(tmp_path):
    return DaemonPaths(tmp_path / "run", tmp_path / "log", tmp_path / "state")


def test_the_lock_is_held_by_one_and_names_its_holder(paths):
    fd = take_lock(paths)
    assert paths.runtime_dir.stat().st_mode & 0o777 == 0o700
    with pytest.raises(DaemonRunningError, match=f"running already: pid {os.getpid()} "):
        take_lock(paths)
    os.close(fd)
    os.close(take_lock(paths))


def test_files_of_an_earlier_life_are_removed_and_directories_made(paths):
    os.close(take_lock(paths))
    assert prepare(paths) is False
    assert paths.log_dir.is_dir()
    assert paths.cache_dir.is_dir()
    paths.page("api-0").write_bytes(b"old")
    (paths.runtime_dir / "m/12345678/3").mkdir(parents=True)
    (paths.runtime_dir / "link").symlink_to(paths.log_dir)
    assert prepare(paths) is True
    names = sorted(path.name for path in paths.runtime_dir.iterdir())
    assert names == ["daemon.lock", "metrics", "pages", "states"]
    assert list(paths.page("x").parent.iterdir()) == []
    assert paths.log_dir.is_dir()


def test_a_directory_with_other_content_is_never_emptied(paths):
    paths.runtime_dir.mkdir()
    (paths.runtime_dir / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="holds files that are not of a daemon"):
        take_lock(paths)
    assert (paths.runtime_dir / "thesis.tex").exists()


def test_a_symbolic_link_in_place_of_the_directory_is_refused(paths, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    paths.runtime_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"choose another paths\.runtime_dir"):
        take_lock(paths)


def test_a_directory_that_cannot_be_made_is_said(paths, tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be made"):
        take_lock(paths)


def test_processes_with_the_mark_of_an_earlier_daemon_are_ended_and_no_others(paths):
    marked = subprocess.Popen(["sleep", "60"], env={"SUPERVISOR_SERVER_URL": f"unix://{paths.supervisor_socket}"})
    other = subprocess.Popen(["sleep", "60"], env={"SUPERVISOR_SERVER_URL": "unix:///elsewhere/supervisor.sock"})
    try:
        assert end_leftovers(paths) == [marked.pid]
        assert marked.wait(5) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        marked.kill()
        marked.wait()
