"""What a running daemon was given last: its file, its overrides, and the configuration that came of them.

A reload compares with this, not with effective.json: there a free port, `standby: auto` or an adopted address have
been decided already. It also keeps whatever the file means something else without: where the daemon was started, and
in which environment. Contents of key files are not in it, only what shows that they changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aphrodited.config.loader import LoadedConfig, load, write_private
from aphrodited.config.schema import Config
from aphrodited.errors import ConfigError

ENVIRONMENT = (
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "LOGS_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
)
"""The variables that `config.directories` reads."""

KEY_FILES = ("keys_file", "admin_keys_file")

Stamp = tuple[int, int, int]  # inode, size, time of modification in ns


class Given(msgspec.Struct, frozen=True):
    """path: the file.  folder: where relative paths of overrides start.  key_files: by the name of the setting.

    pending: programs that a reload has yet to restart; there are some while one runs, or if one was cut short.
    """

    path: str
    overrides: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    config: Config
    key_files: dict[str, Stamp] = {}
    pending: tuple[str, ...] = ()

    def load_again(self) -> LoadedConfig:
        """What the file says now, to this very daemon. Raises ConfigError with all problems at once."""
        return load(
            Path(self.path), self.overrides, environment=self.environment, folder=Path(self.folder)
        )


def given_from(path: Path, overrides: tuple[str, ...], config: Config, environment: Mapping[str, str]) -> Given:
    """What a daemon that starts now has been given."""
    kept = {name: environment[name] for name in ENVIRONMENT if name in environment}
    return Given(os.path.abspath(path), overrides, os.getcwd(), kept, config, stamp_key_files(config))


def stamp_key_files(config: Config) -> dict[str, Stamp]:
    """What tells one state of a key file from another, for those that there are."""
    stamps = {}
    for name in KEY_FILES:
        path = getattr(config.api, name)
        if path is not None:
            stat = os.stat(path)
            stamps[name] = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return stamps


def write_given(given: Given, path: Path) -> None:
    """Whole or not at all, readable by its owner alone."""
    write_private(msgspec.json.format(msgspec.json.encode(given), indent=2), path)


def read_given(path: Path) -> Given:
    """Raises ConfigError if there is none or it is not one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Given)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; a daemon writes it when it starts") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: is not of this version: {error}; restart the daemon") from None

