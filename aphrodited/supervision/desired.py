"""What the operator wants of a model: that it is served, drained, stopped or unloaded.

    served      requests are taken
    drained     new requests are refused, running ones finish; the engines stay
    stopped     its engines were stopped one by one; forgotten when the daemon starts anew
    unloaded    its engines are gone and their memory with them, new requests are refused

A file in the model's folder, which goes with the daemon; `drained` and `unloaded` are kept in the state directory too, from
where the next daemon restores them. Whoever stops a model's engines writes it first, so that a standby that sees the
active engine end knows that this was meant. Starts and stops nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from aphrodited.paths import DaemonPaths, ModelPaths


class Desired(StrEnum):
    SERVED = "served"
    DRAINED = "drained"
    STOPPED = "stopped"
    UNLOADED = "unloaded"

    @property
    def wants_engines(self) -> bool:
        return self in (Desired.SERVED, Desired.DRAINED)


_KEPT = (Desired.DRAINED, Desired.UNLOADED)


def read_desired(paths: ModelPaths) -> Desired:
    """SERVED unless the file says otherwise."""
    return _read(paths.desired)


def write_desired(paths: DaemonPaths, model: str, desired: Desired) -> None:
    """Replace what is wanted of a model, atomically. Raises OSError; then nothing, or only the next daemon's, has changed."""
    kept = paths.kept_desired(model)
    if desired in _KEPT:
        _write(kept, desired)
    else:
        kept.unlink(missing_ok=True)
    _write(paths.model(model).desired, desired)


def restore_desired(paths: DaemonPaths, models: Iterable[str]) -> None:
    """Take over what an earlier daemon was told of these models. Raises OSError."""
    for model in models:
        desired = _read(paths.kept_desired(model))
        if desired in _KEPT:
            _write(paths.model(model).desired, desired)


def unloaded_models(paths: DaemonPaths, models: Iterable[str]) -> frozenset[str]:
    """Those of these models whose engines are not wanted at all."""
    return frozenset(model for model in models if read_desired(paths.model(model)) is Desired.UNLOADED)


class DesiredWatch:
    """Follows one model's file: call it for what is wanted now. One stat as long as nothing changes."""

    def __init__(self, paths: ModelPaths) -> None:
        self._path = paths.desired
        self._seen: tuple[int, int] | None = None
        self._known = Desired.SERVED

    def __call__(self) -> Desired:
        try:
            stat = os.stat(self._path)
            seen = (stat.st_ino, stat.st_mtime_ns)
        except FileNotFoundError:
            seen = None
        if seen != self._seen:
            self._known = _read(self._path)
            self._seen = seen
        return self._known


def _read(path: Path) -> Desired:
    try:
        return Desired(path.read_text("ascii").strip())
    except (FileNotFoundError, ValueError):
        return Desired.SERVED


def _write(path: Path, desired: Desired) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(f"{desired}\n", "ascii")
    os.replace(temporary, path)
