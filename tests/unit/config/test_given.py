"""What a daemon was given, kept for a reload."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from aphrodited.config.given import given_from, read_given, stamp_key_files, write_given
from aphrodited.config.loader import load
from aphrodited.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.yaml"
    path.write_text("models: [{name: m, path: org/m}]\napi: {port: 0}\n")
    return path


def test_it_is_read_as_it_was_written_by_its_owner_alone(file: Path, tmp_path: Path) -> None:
    given = given_from(file, ("api.workers=1",), load(file).config, {"STATE_DIRECTORY": "/s", "SECRET": "x"})
    write_given(given, tmp_path / "given.json")
    assert stat.S_IMODE((tmp_path / "given.json").stat().st_mode) == 0o600
    assert read_given(tmp_path / "given.json") == given
    assert given.environment == {"STATE_DIRECTORY": "/s"}


def test_the_file_is_read_again_as_it_was_for_the_daemon(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its overrides, from where it was started, in its environment; wherever the operator stands."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "start").mkdir()
    monkeypatch.chdir(tmp_path / "start")
    given = given_from(file, ("models[0].path=./m",), load(file).config, {"STATE_DIRECTORY": "/s"})
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("STATE_DIRECTORY", "/mine")
    file.write_text(file.read_text() + "logging: {level: debug}\n")
    config = given.load_again().config
    assert config.models[0].path == str(tmp_path / "start/m")
    assert config.paths.state_dir == "/s"
    assert config.logging.level == "debug"


def test_a_key_file_that_is_written_anew_is_seen_and_its_contents_are_not_kept(file: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    keys.chmod(0o600)
    file.write_text(f"models: [{{name: m, path: org/m}}]\napi: {{keys_file: {keys}}}\n")
    config = load(file).config
    given = given_from(file, (), config, os.environ)
    assert given.key_files == stamp_key_files(config)
    keys.write_text("another\n")
    assert given.key_files != stamp_key_files(config)
    assert b"secret" not in msgspec.json.encode(given)


@pytest.mark.parametrize("contents", [None, "", "{}", "[1]"])
def test_what_is_not_there_or_damaged_is_said(tmp_path: Path, contents: str | None) -> None:
    if contents is not None:
        (tmp_path / "given.json").write_text(contents)
    with pytest.raises(ConfigError, match=r"given\.json"):
        read_given(tmp_path / "given.json")
