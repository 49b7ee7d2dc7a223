"""Makes every path of a configuration absolute and chooses directories that were not given.

Two configuration files get two sets of directories, because names hold a hash of the file's own path. The
environment is read here and nowhere else: $RUNTIME_DIRECTORY, $STATE_DIRECTORY, $LOGS_DIRECTORY and
$CREDENTIALS_DIRECTORY as systemd sets them, $XDG_RUNTIME_DIR and $XDG_STATE_HOME as a login session does.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from aphrodited.config.schema import Config, PathsConfig
from aphrodited.paths import DaemonPaths

SYSTEM_CONFIG = Path("/etc/aphrodited/config.yaml")
"""The file of the system's own daemon. Its directories are known, so that a shell finds what a unit started."""

_SYSTEM_DIRECTORIES = {
    "runtime_dir": "/run/aphrodited",
    "state_dir": "/var/lib/aphrodited",
    "log_dir": "/var/log/aphrodited",
}

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_CREDENTIAL = re.compile(r"credential:([A-Za-z0-9._-]+)")

FolderOf = Callable[[str], Path]  # where relative paths of a key start


def config_name(path: Path) -> str:
    """A short name for the daemon of this file, the same however the file is reached."""
    return f"aphrodited-{hashlib.sha256(os.fsencode(canonical(path))).hexdigest()[:8]}"


def canonical(path: Path) -> Path:
    """Absolute, symbolic links resolved up to the file itself: a link that is the file may change its target."""
    absolute = Path(os.path.abspath(path))
    return Path(os.path.realpath(absolute.parent)) / absolute.name


def with_absolute_paths(
    config: Config, path: Path, folder_of: FolderOf, environment: Mapping[str, str]
) -> Config:
    """The configuration with all paths absolute and all directories set.

    folder_of: where relative paths of a key start. A model path that looks like a hub id and is no file stays.
    """
    models = tuple(
        msgspec.structs.replace(model, path=_model_path(model.path, folder_of(f"models[{index}].path")))
        for index, model in enumerate(config.models)
    )

    def secret(key: str, value: str | None) -> str | None:
        if value is None:
            return None
        if match := _CREDENTIAL.fullmatch(value):
            return str(Path(environment.get("CREDENTIALS_DIRECTORY", "/run/credentials")) / match[1])
        return _absolute(value, folder_of(key))

    api = msgspec.structs.replace(
        config.api,
        keys_file=secret("api.keys_file", config.api.keys_file),
        admin_keys_file=secret("api.admin_keys_file", config.api.admin_keys_file),
    )
    paths = with_directories(config.paths, path, folder_of, environment)
    return msgspec.structs.replace(config, models=models, api=api, paths=paths)


def with_directories(
    given: PathsConfig, path: Path, folder_of: FolderOf, environment: Mapping[str, str]
) -> PathsConfig:
    name = config_name(path)

    def choose(key: str, value: str | None, variable: str, default: Callable[[], str]) -> str:
        if value is not None:
            return _absolute(value, folder_of(f"paths.{key}"))
        if chosen := environment.get(variable, "").split(":")[0]:
            return chosen
        return _SYSTEM_DIRECTORIES[key] if canonical(path) == SYSTEM_CONFIG else default()

    state_dir = choose(
        "state_dir", given.state_dir, "STATE_DIRECTORY", lambda: str(_state_home(environment) / name)
    )
    return PathsConfig(
        runtime_dir=choose(
            "runtime_dir", given.runtime_dir, "RUNTIME_DIRECTORY", lambda: _runtime_dir(environment, name)
        ),
        log_dir=choose("log_dir", given.log_dir, "LOGS_DIRECTORY", lambda: f"{state_dir}/log"),
        state_dir=state_dir,
    )


def daemon_paths(config: Config) -> DaemonPaths:
    """The paths of a loaded configuration's daemon."""
    paths = config.paths
    if paths.runtime_dir is None or paths.log_dir is None or paths.state_dir is None:
        raise ValueError("directories are set by load_config; this configuration was not loaded by it")
    return DaemonPaths(Path(paths.runtime_dir), Path(paths.log_dir), Path(paths.state_dir))


def _state_home(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_STATE_HOME", "")
    return Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~/.local/state"))


def _runtime_dir(environment: Mapping[str, str], name: str) -> str:
    session = environment.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(session) and os.access(session, os.W_OK):
        return f"{session}/{name}"
    # Others may write /tmp: the daemon refuses a directory there that it does not own.
    return f"/tmp/{name}-{os.getuid()}"


def _absolute(value: str, folder: Path) -> str:
    return os.path.normpath(folder / Path(os.path.expanduser(value)))


def _model_path(value: str, folder: Path) -> str:
    local = _absolute(value, folder) if value else ""
    looks_like_hub_id = _HUB_ID.fullmatch(value) is not None and not value.endswith(".gguf")
    if not value or (looks_like_hub_id and not os.path.exists(local)):
        return value
    return local
