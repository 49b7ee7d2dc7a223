from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from aphrodited.loaders import kept_file
from aphrodited.loaders.kept_file import KeptFile

ARRAYS = {
    "a/rows": np.arange(-6, 6, dtype=np.int8).reshape(3, 4),
    "a/steps": np.array([0.5, 1.5, 2.5], np.float32),
    "b/offsets": np.array([7, -7], np.int32),
}


@pytest.fixture
def file(tmp_path: Path) -> KeptFile:
    return KeptFile(tmp_path / "weights", "model", "1")


def test_what_is_written_is_read(file: KeptFile) -> None:
    assert file.read() is None
    file.write(ARRAYS)
    kept = file.read()
    assert kept is not None
    assert {name: tensor.tolist() for name, tensor in kept.items()} == {n: a.tolist() for n, a in ARRAYS.items()}
    assert [tensor.dtype for tensor in kept.values()] == [torch.int8, torch.float32, torch.int32]


def test_it_is_a_safetensors_file_for_its_owner_alone(file: KeptFile) -> None:
    file.write(ARRAYS)
    assert load_file(file.path).keys() == ARRAYS.keys()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:20],
        lambda data: b"",
        lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:],
        lambda data: data.replace(b"crc32", b"crc33"),
        lambda data: b"\xff" * 8 + data[8:],
    ],
    ids=["cut", "cut in the header", "empty", "one bit", "no checksum", "header size"],
)
def test_a_damaged_file_is_none_until_it_is_written_again(file: KeptFile, damage: Callable[[bytes], bytes]) -> None:
    file.write(ARRAYS)
    file.path.write_bytes(damage(file.path.read_bytes()))
    assert file.read() is None
    file.write(ARRAYS)
    assert file.read() is not None


def test_one_version_of_each_thing_is_kept(tmp_path: Path, file: KeptFile) -> None:
    other = KeptFile(tmp_path / "weights", "another", "1")
    for each in (other, file):
        each.write(ARRAYS)
    newer = KeptFile(tmp_path / "weights", "model", "2")
    newer.write(ARRAYS)
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {newer.path.name, other.path.name}


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path, file: KeptFile) -> None:
    file.write(ARRAYS)
    dead, living = (tmp_path / "weights" / f".model-{pid}.safetensors" for pid in (2**22 + 1, os.getppid()))
    dead.touch()
    living.touch()
    file.write(ARRAYS)
    assert not dead.exists()
    assert living.exists()


def test_a_full_disk_leaves_what_was_there(file: KeptFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write(ARRAYS)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept_file.os, "fsync", full)
    file.write({"a/rows": np.zeros(3, np.int8)})
    kept = file.read()
    assert kept is not None
    assert kept.keys() == ARRAYS.keys()
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]


def test_a_folder_that_cannot_be_made_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("a file")
    file = KeptFile(tmp_path / "weights", "model", "1")
    file.write(ARRAYS)
    assert file.read() is None
