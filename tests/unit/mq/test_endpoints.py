"""Tests of aphrodited.mq.endpoints."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from aphrodited.errors import ConfigError
from aphrodited.mq.endpoints import (
    GenerationTakenError,
    Holder,
    check_socket_paths,
    is_served,
    promote,
    read_current,
    read_holder,
)
from aphrodited.paths import ModelPaths
from aphrodited.procfs import process_start_ticks


def announced(paths: ModelPaths) -> int | None:
    current = read_current(paths)
    return current.generation if current else None


def test_generations_count_up_over_restarts(model_paths: ModelPaths) -> None:
    for expected in (1, 2, 3):
        with closing(promote(model_paths)) as generation:
            assert generation.number == expected
            assert generation.folder.is_dir()


def test_nothing_is_announced_before_the_sockets_are_bound(model_paths: ModelPaths) -> None:
    with closing(promote(model_paths)) as generation:
        assert announced(model_paths) is None
        generation.announce()
        assert announced(model_paths) == 1


def test_leaving_takes_the_announcement_and_the_folder_back(model_paths: ModelPaths) -> None:
    with closing(promote(model_paths)) as generation:
        generation.announce()
    assert announced(model_paths) is None
    assert [path.name for path in model_paths.folder.iterdir()] == ["lock"]


def test_two_announcements_of_one_number_differ(model_paths: ModelPaths) -> None:
    with closing(promote(model_paths)) as generation:
        generation.announce()
        first = read_current(model_paths)
        generation.announce()
        assert read_current(model_paths) != first


def test_a_second_engine_is_refused_while_the_first_lives(model_paths: ModelPaths) -> None:
    with closing(promote(model_paths)), pytest.raises(GenerationTakenError, match="another engine process holds"):
        promote(model_paths, wait_s=0.1)


def test_a_killed_engine_leaves_nothing_in_the_way(model_paths: ModelPaths) -> None:
    code = (
        "import os, signal; from pathlib import Path; from aphrodited.mq.endpoints import promote\n"
        "from aphrodited.paths import ModelPaths\n"
        f"promote(ModelPaths(Path({str(model_paths.folder)!r}))).announce(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert announced(model_paths) == 1
    with closing(promote(model_paths, wait_s=0)) as generation:
        assert generation.number == 2
        assert not model_paths.generation(1).exists()


def test_a_generation_that_still_drains_keeps_its_folder(model_paths: ModelPaths) -> None:
    with closing(promote(model_paths)) as leaving:
        leaving.hand_over()
        with closing(promote(model_paths, wait_s=0)) as next_one:
            next_one.announce()
            assert leaving.folder.is_dir()
            assert next_one.number == leaving.number + 1


def test_leaving_late_does_not_touch_the_successor(model_paths: ModelPaths) -> None:
    leaving = promote(model_paths)
    leaving.hand_over()
    with closing(promote(model_paths, wait_s=0)) as next_one:
        next_one.announce()
        leaving.close()
        assert announced(model_paths) == next_one.number
        assert next_one.folder.is_dir()


@pytest.mark.parametrize("damage", ["", "nonsense", "-"])
def test_a_damaged_lock_file_does_not_repeat_a_number(model_paths: ModelPaths, damage: str) -> None:
    with closing(promote(model_paths)) as generation:
        generation.announce()
        model_paths.lock.write_text(damage)
        os.rename(model_paths.current, model_paths.folder / "kept")
    os.rename(model_paths.folder / "kept", model_paths.current)
    with closing(promote(model_paths)) as generation:
        assert generation.number == 2


@pytest.mark.parametrize("text", ["", "x", "1 2"])
def test_a_damaged_current_announces_nobody(model_paths: ModelPaths, text: str) -> None:
    model_paths.folder.mkdir(parents=True)
    model_paths.current.write_text(text)
    assert read_current(model_paths) is None


def test_only_the_owner_may_enter(model_paths: ModelPaths) -> None:
    with closing(promote(model_paths)) as generation:
        for folder in (model_paths.folder, generation.folder):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(model_paths.lock.stat().st_mode) == 0o600


def test_a_path_that_no_socket_address_holds_is_told_at_once(tmp_path: Path) -> None:
    paths = ModelPaths(tmp_path / ("d" * 90) / "m")
    with pytest.raises(ConfigError, match=r"paths\.runtime_dir to a shorter directory"):
        check_socket_paths(paths)
    with pytest.raises(ConfigError):
        promote(paths)
    assert not paths.folder.exists()


def test_no_file_descriptor_is_left(model_paths: ModelPaths) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        promote(model_paths).close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_lock_file_names_its_holder(model_paths: ModelPaths) -> None:
    assert not is_served(model_paths)
    with closing(promote(model_paths)) as generation:
        start_ticks = process_start_ticks(os.getpid())
        assert start_ticks is not None
        assert generation._lock_fd is not None
        assert read_holder(generation._lock_fd) == Holder(os.getpid(), start_ticks)
        assert is_served(model_paths)


@pytest.mark.parametrize("text", ["", "3\n", "3 x y\n", "3 999999999 5\n", "3 1 5\n"])
def test_a_holder_that_is_not_there_serves_nothing(model_paths: ModelPaths, text: str) -> None:
    model_paths.folder.mkdir(parents=True)
    model_paths.lock.write_text(text)
    assert not is_served(model_paths)
