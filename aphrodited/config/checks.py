"""Checks between values, and of values against the machine: what no single type can say.

A missing model file is not a problem here: that model's engine is parked with the reason and the others serve.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from aphrodited.config.cpus import usable_cpus
from aphrodited.config.schema import Config
from aphrodited.paths import MAX_SOCKET_PATH, DaemonPaths, model_folder

LATER = "comes with a later version"


class Complaint(NamedTuple):
    """key: where the operator would mend it.  others: further keys that it rests on."""

    key: str
    message: str
    others: tuple[str, ...] = ()


def find_problems(config: Config, paths: DaemonPaths) -> Iterator[Complaint]:
    """All of them, in no particular order."""
    yield from _check_models(config)
    yield from _check_listeners(config)
    yield from _check_cpus(config)
    for key, name in (("api.keys_file", config.api.keys_file), ("api.admin_keys_file", config.api.admin_keys_file)):
        if name is not None:
            yield from (Complaint(key, message) for message in _check_keys_file(Path(name)))
    yield from _check_socket_paths(paths)


def find_warnings(config: Config) -> list[str]:
    """What is allowed but probably not meant, one sentence each."""
    warnings = []
    for key, name in (("api.keys_file", config.api.keys_file), ("api.admin_keys_file", config.api.admin_keys_file)):
        if name is not None and Path(name).stat().st_mode & stat.S_IROTH:
            warnings.append(f"{key}: every user of this host can read {name}; restrict it with chmod 640")
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
    indices: dict[str, int] = {}
    for index, model in enumerate(config.models):
        key = f"models[{index}]"
        first = indices.setdefault(model_folder(model.name), index)
        taken = config.models[first].name
        if first != index:
            reason = "names must differ" if taken == model.name else f"with {model.name} it would share a folder name"
            yield Complaint(f"{key}.name", f"{taken} is models[{first}] already; {reason}", (f"models[{first}].name",))
        if model.engine.block_size & (model.engine.block_size - 1):
            yield Complaint(f"{key}.engine.block_size", f"expected a power of two, found {model.engine.block_size}")
        if not model.path:
            yield Complaint(f"{key}.path", "is empty; name a .gguf file, a directory or a hub id")


def _check_listeners(config: Config) -> Iterator[Complaint]:
    api, monitor = config.api, config.monitor
    for key, host in (("api.host", api.host), ("monitor.host", monitor.host)):
        if not host or any(c.isspace() for c in host):
            yield Complaint(key, "expected an address such as 127.0.0.1")
    if api.port == monitor.port != 0:
        message = f"{monitor.port} is the API's port too; give the monitor another one"
        yield Complaint("monitor.port", message, ("api.port",))
    if not is_loopback(api.host) and api.keys_file is None and not api.allow_unauthenticated:
        yield Complaint(
            "api.host",
            f"{api.host!r} is reachable from other hosts, so api.keys_file is required"
            " (or api.allow_unauthenticated: true, if really anybody may use it)",
            ("api.keys_file", "api.allow_unauthenticated"),
        )


def _check_cpus(config: Config) -> Iterator[Complaint]:
    lists = {"api.cpus": config.api.cpus}
    lists |= {f"models[{index}].engine.cpus": model.engine.cpus for index, model in enumerate(config.models)}
    for key, cpus in lists.items():
        if not usable_cpus(cpus):
            allowed = ", ".join(map(str, sorted(usable_cpus(None))))
            yield Complaint(key, f"none of {cpus} may be used by this process, which has {allowed}")


def _check_keys_file(path: Path) -> Iterator[str]:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            yield f"{path} is not a file"
            return
        if mode & stat.S_IWOTH:
            yield f"every user of this host can write {path}; restrict it with chmod 640"
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
        message = f"{paths.runtime_dir} is {excess} bytes too long for unix sockets below it; choose a shorter one"
        yield Complaint("paths.runtime_dir", message)
    directories = [paths.runtime_dir, paths.log_dir, paths.state_dir]
    for key, directory in zip(("runtime_dir", "log_dir", "state_dir"), directories, strict=True):
        if directory.exists() and not directory.is_dir():
            yield Complaint(f"paths.{key}", f"{directory} exists and is not a directory")
