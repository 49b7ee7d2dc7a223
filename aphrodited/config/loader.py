"""Reads the configuration file once, strictly, and hands it on.

`load_config` is the only door: what it returns is complete, frozen and checked, with every path absolute.
The daemon writes it to `effective.json`; its workers read that with `read_effective` and never see YAML.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from aphrodited.config.build import Builder
from aphrodited.config.checks import find_problems
from aphrodited.config.directories import canonical, daemon_paths, with_absolute_paths, with_directories
from aphrodited.config.document import read_document
from aphrodited.config.problems import Problem, is_override, place, render
from aphrodited.config.schema import Config, PathsConfig
from aphrodited.errors import ConfigError
from aphrodited.paths import DaemonPaths

__all__ = ["LoadedConfig", "daemon_paths", "find_paths", "load", "load_config", "read_effective", "write_effective"]


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """origins: where each key that was given stands (FILE:LINE:COLUMN or --set ...); other keys have their default."""

    path: Path
    config: Config
    origins: dict[str, str]


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in the file, with overrides such as `api.port=8080` on top.

    Relative paths start at the file, those of overrides at the working directory.
    Raises ConfigError with all problems at once.
    """
    return load(path, overrides).config


def load(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    environment: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> LoadedConfig:
    """As load_config, with the origin of each value. folder: where paths of overrides start, if not here."""
    document = read_document(path, overrides)
    builder = Builder(Config)
    built: Config = builder.build(document.root)

    def folder_of(key: str) -> Path:
        mark = builder.marks.get(key)
        return (folder or Path.cwd()) if mark is not None and is_override(mark) else canonical(path).parent

    config = with_absolute_paths(built, path, folder_of, environment)
    wrong = {problem.key for problem in builder.problems}
    problems = builder.problems + [
        Problem(_nearest(builder.marks, complaint.key), complaint.key, complaint.message)
        for complaint in find_problems(config, daemon_paths(config))
        # What stands in for a wrong value is not the operator's.
        if wrong.isdisjoint(a for key in (complaint.key, *complaint.others) for a in _ancestry(key))
    ]
    if problems:
        raise ConfigError(render(problems, document.sources))
    return LoadedConfig(path, config, {key: place(mark) for key, mark in builder.marks.items() if key})


def find_paths(path: Path) -> DaemonPaths:
    """Where the file's daemon lies, read from `paths` alone: works while other parts of the file are wrong.

    Raises ConfigError if even that cannot be read.
    """
    document = read_document(path)
    given = PathsConfig()
    for name_node, value_node in document.root.value:
        if name_node.value == "paths":
            builder = Builder(PathsConfig)
            given = builder.build(value_node)
            if builder.problems:
                raise ConfigError(render(builder.problems, document.sources))
    folder = canonical(path).parent
    paths = with_directories(given, path, lambda _key: folder, os.environ)
    assert paths.runtime_dir is not None
    assert paths.log_dir is not None
    assert paths.state_dir is not None
    return DaemonPaths(Path(paths.runtime_dir), Path(paths.log_dir), Path(paths.state_dir))


def _nearest(marks: dict[str, yaml.Mark], key: str) -> yaml.Mark | None:
    """The place of the key, or of what it would stand in."""
    return next((marks[candidate] for candidate in _ancestry(key) if candidate in marks), None)


def _ancestry(key: str) -> Iterator[str]:
    while key:
        yield key
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    yield ""


def write_effective(config: Config, path: Path) -> None:
    """Write the configuration as JSON for the workers: whole or not at all, readable by its owner alone."""
    write_private(msgspec.json.format(msgspec.json.encode(config), indent=2), path)


def write_private(data: bytes, path: Path) -> None:
    """Replace a file atomically by one of mode 0600."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def read_effective(path: Path) -> Config:
    """What write_effective wrote. Raises ConfigError if there is none or it is not one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Config)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; the daemon writes it when it starts") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: is not a configuration of this version: {error}") from None
