"""Checks between values, and of values against the machine: what no single type can say.

Each check yields (key, message) pairs; the key is where the operator would mend it. A missing model file is not
a problem here: that model's engine is parked with the reason and the other models serve.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from aphrodited.config.schema import Config
from aphrodited.paths import MAX_SOCKET_PATH, DaemonPaths, model_folder

Complaint = tuple[str, str]

LATER = "comes with a later version"


def find_problems(config: Config, paths: DaemonPaths) -> Iterator[Complaint]:
    """All of them, in no particular order."""
    yield from _check_models(config)
    yield from _check_listeners(config)
    yield from _check_recovery(config)
    for key, name in (("api.keys_file", config.api.keys_file), ("api.admin_keys_file", config.api.admin_keys_file)):
        if name is not None:
            yield from ((key, message) for message in _check_keys_file(Path(name)))
    yield from _check_socket_paths(paths)


def find_warnings(config: Config) -> list[str]:
    """What is allowed but probably not meant, one sentence each."""
    warnings = []
    for key, name in (("api.keys_file", config.api.keys_file), ("api.admin_keys_file", config.api.admin_keys_file)):
        if name is not None and Path(name).stat().st_mode & stat.S_IROTH:
            warnings.append(f"{key}: every user of this host can read {name}; chmod 640 it")
    if config.api.allow_unauthenticated and config.api.keys_file is None and not is_loopback(config.api.host):
        warnings.append(f"api.host: {config.api.host} is open to the network and asks for no key")
    return warnings


def is_loopback(host: str) -> bool:
    """Whether only this host can reach a listener there. A name other than localhost counts as open."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_models(config: Config) -> Iterator[Complaint]:
    folders: dict[str, str] = {}
    for index, model in enumerate(config.models):
        key = f"models[{index}]"
        other = folders.setdefault(model_folder(model.name), model.name)
        earlier = [m.name for m in config.models[:index]]
        if model.name in earlier:
            yield f"{key}.name", f"{model.name} is taken by models[{earlier.index(model.name)}]; names must differ"
        elif other != model.name:
            yield f"{key}.name", f"would share a folder name with {other}; change one of the two names"
        if model.standby > 0:
            yield f"{key}.standby", f"a warm standby {LATER}; set it to 0"
        if model.engine.block_size & (model.engine.block_size - 1):
            yield f"{key}.engine.block_size", f"expected a power of two, found {model.engine.block_size}"
        if not model.path:
            yield f"{key}.path", "is empty; name a .gguf file, a directory or a hub id"


def _check_listeners(config: Config) -> Iterator[Complaint]:
    api, monitor = config.api, config.monitor
    for key, host in (("api.host", api.host), ("monitor.host", monitor.host)):
        if not host or any(c.isspace() for c in host):
            yield key, "expected an address such as 127.0.0.1"
    if api.port == monitor.port != 0:
        yield "monitor.port", f"{monitor.port} is the API's port too; give the monitor another one"
    if not is_loopback(api.host) and api.keys_file is None and not api.allow_unauthenticated:
        yield (
            "api.host",
            f"{api.host} is reachable from other hosts, so api.keys_file is required"
            " (or api.allow_unauthenticated: true, if really anybody may use it)",
        )


def _check_recovery(config: Config) -> Iterator[Complaint]:
    if config.recovery.on_engine_death == "resume":
        yield "recovery.on_engine_death", f"resume {LATER}; set it to fail"


def _check_keys_file(path: Path) -> Iterator[str]:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            yield f"{path} is not a file"
            return
        if mode & stat.S_IWOTH:
            yield f"every user of this host can write {path}; chmod 640 it"
        with path.open("rb") as file:
            lines = file.read(1024 * 1024).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        yield f"{path} is not UTF-8 text"
    except OSError as error:
        yield f"{path} cannot be read: {error.strerror}"
    else:
        if not any(line.strip() and not line.lstrip().startswith("#") for line in lines):
            yield f"{path} holds no key; write one a line, or leave the setting out"


def _check_socket_paths(paths: DaemonPaths) -> Iterator[Complaint]:
    """Unix sockets take 107 bytes of path; the longest of ours belongs to a model's generation."""
    longest = paths.model("any").endpoint(99_999_999, "output").removeprefix("ipc://")
    excess = len(os.fsencode(longest)) - MAX_SOCKET_PATH
    if excess > 0:
        yield (
            "paths.runtime_dir",
            f"{paths.runtime_dir} is {excess} bytes too long for unix sockets below it; choose a shorter one",
        )
    directories = [paths.runtime_dir, paths.log_dir, paths.state_dir]
    for key, directory in zip(("runtime_dir", "log_dir", "state_dir"), directories, strict=True):
        if directory.exists() and not directory.is_dir():
            yield f"paths.{key}", f"{directory} exists and is not a directory"
